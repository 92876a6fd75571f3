"""Longest sequences that Unsloth publishes (``data/unsloth_longest.toml``),
and those that we find for the same jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.catalog.location import data_dir
from planner.domain.prediction import Prediction, Verdict
from planner.domain.uncertainty.calibration import Calibration
from planner.files.checking import validate
from planner.files.structured import read_toml
from planner.predicting import predict_with
from planner.units import GIB
from tests.accuracy.stored import stored_accuracy
from tests.jobs import resolved

FILE_NAME = "unsloth_longest.toml"
_STEP_TOKENS = 64
# More than any of these cards holds.
_LONGEST_TOKENS = 4_194_304
# A card on which nothing is given back to the driver, to see all that would be reserved.
_ROOMY = "900GiB"


class _Longest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str
    vram_gb: int = Field(gt=0)
    gpu: str
    gpu_memory: str | None = None
    published_tokens: dict[str, int]


class _Column(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    title: str
    flags: list[str]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    schema_version: Literal[1] = Field(alias="schema")
    source: str
    published: str
    setting: str
    flags: list[str]
    columns: dict[str, _Column]
    longest: list[_Longest]


@dataclass(frozen=True, slots=True)
class Case:
    """One published length.

    ``column``: the software that it is of; ``title``: its name.  ``published_tokens``: 0 where nothing
    fitted.  ``flags``: of ``plan``, by name, all but the length.
    """

    column: str
    title: str
    model: str
    vram_gb: int
    published_tokens: int
    flags: dict[str, str]

    def predict(self, tokens: int, calibration: Calibration, **instead: str) -> Prediction:
        """The prediction at one length; ``instead``: other values of some flags, with ``_`` for ``-``."""
        changed = {name.replace("_", "-"): value for name, value in instead.items()}
        return predict_with(resolved({**self.flags, **changed, "seq": str(tokens)}), calibration)


@dataclass(frozen=True, slots=True)
class Answer:
    """What we say of one published length.

    ``tokens``: the length with P(fits) of one half, to a hundredth; 0 where none fits.
    ``probability`` and ``verdict``: of the published length, ``None`` where there is none.
    ``reserved_tokens``: where all that the allocator reserves on an A100 without a limit would reach the
    memory by its name.
    """

    case: Case
    tokens: int
    probability: float | None
    verdict: Verdict | None
    reserved_tokens: int

    @property
    def ratio(self) -> float | None:
        """Our length over the published one."""
        return self.tokens / self.case.published_tokens if self.case.published_tokens else None


def published_cases(path: Path | None = None) -> tuple[Case, ...]:
    """All published lengths, column by column.

    Raises:
        InputFileError: the file is missing or malformed.
    """
    path = path or data_dir() / FILE_NAME
    content = validate(_File, read_toml(path), path)
    return tuple(_cases(content))


def _cases(content: _File) -> Iterator[Case]:
    for column, software in content.columns.items():
        for row in content.longest:
            flags = {
                "model": row.model,
                "gpu": row.gpu,
                **({"gpu-memory": row.gpu_memory} if row.gpu_memory else {}),
            }
            words = [*content.flags, *software.flags]
            said = dict(zip((word.removeprefix("--") for word in words[::2]), words[1::2], strict=True))
            yield Case(
                column,
                software.title,
                row.model,
                row.vram_gb,
                row.published_tokens[column],
                {**flags, **said},
            )


def answer(case: Case, calibration: Calibration) -> Answer:
    """Our answer to one published length: that of
    ``plan search --solve seq --confidence 0.5 --beyond-context``, by estimates.
    """
    at = case.predict(case.published_tokens, calibration) if case.published_tokens else None
    return Answer(
        case=case,
        tokens=_even(partial(_fits, case, calibration)),
        probability=None if at is None else at.fits_probability,
        verdict=None if at is None else at.verdict,
        reserved_tokens=_largest(partial(_within_name, case, calibration)),
    )


def longest_part(calibration: Calibration) -> list[dict[str, Any]]:
    """Our answers to all published lengths as ``data/accuracy.json`` keeps them,
    in the order of the file of these lengths.
    """
    return [{name: getattr(answer(case, calibration), name) for name in _KEPT} for case in published_cases()]


def stored_answers() -> tuple[Answer, ...]:
    """The answers that ``data/accuracy.json`` keeps.

    Raises:
        InputFileError: missing or malformed.
        ValueError: it has more or fewer than there are published lengths.
    """
    return tuple(
        Answer(case, **kept)
        for case, kept in zip(published_cases(), stored_accuracy()["longest"], strict=True)
    )


_KEPT = ("tokens", "probability", "verdict", "reserved_tokens")


def _fits(case: Case, calibration: Calibration, tokens: int) -> bool:
    return (case.predict(tokens, calibration).fits_probability or 0.0) >= 0.5


def _within_name(case: Case, calibration: Calibration, tokens: int) -> bool:
    memory = case.predict(tokens, calibration, gpu="a100-80-sxm", gpu_memory=_ROOMY).memory
    return float(memory.reserved_peak_bytes) <= case.vram_gb * GIB


def _even(fits: Callable[[int], bool]) -> int:
    """The length above which as many hundredths still fit as below it do not, up to a fifth around an end.

    Blocks round otherwise in longer sequences, so that some fit where shorter ones do not: a bisection ends
    at any of several ends.
    """
    end = _largest(fits)
    around = [round(end * thousandths / 1000) for thousandths in range(805, 1200, 10)]
    return round(end * (0.8 + 0.4 * sum(map(fits, around)) / len(around))) if end else 0


def _largest(holds: Callable[[int], bool]) -> int:
    """A multiple of 64 tokens that ``holds`` before one that does not; 0 where none does."""
    low, high = 0, _LONGEST_TOKENS // _STEP_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle * _STEP_TOKENS) else (low, middle)
    return low * _STEP_TOKENS


def longest_table(answers: tuple[Answer, ...]) -> str:
    """The comparison as tables in Markdown, one for each published column."""
    columns = dict.fromkeys(each.case.column for each in answers)
    return "\n\n".join(
        _column_table([each for each in answers if each.case.column == column]) for column in columns
    )


def _column_table(answers: list[Answer]) -> str:
    flags = _shared(answers)
    title = (
        f"{answers[0].case.title}: `plan search --solve seq --confidence 0.5 --beyond-context "
        f"{flags}`, `plan {flags} --seq ...`"
    )
    names = ("model", "memory", "`--gpu`", "published", "ours, P 50 %", "ratio", "at the published length")
    head = f"| {' | '.join(names)} | reserved reaches the memory at |"
    rule = "|---|--:|---|--:|--:|--:|---|--:|"
    return "\n".join((title, "", head, rule, *(_row(each) for each in answers)))


def _shared(answers: list[Answer]) -> str:
    return " ".join(f"--{name} {value}" for name, value in answers[0].case.flags.items() if name not in _OWN)


_OWN = frozenset({"model", "gpu", "gpu-memory"})


def _row(each: Answer) -> str:
    case = each.case
    card = case.flags["gpu"] + (
        f", `--gpu-memory {case.flags['gpu-memory']}`" if "gpu-memory" in case.flags else ""
    )
    published = f"{case.published_tokens:,}" if case.published_tokens else "OOM"
    ours = f"{each.tokens:,}" if each.tokens else "nothing fits"
    ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
    verdict = (
        ""
        if each.verdict is None or each.probability is None
        else f"{_words(each.verdict)}, P {each.probability:.0%}"
    )
    reserved = f"{each.reserved_tokens:,}" if each.reserved_tokens else ""
    return (
        f"| {case.model} | {case.vram_gb} GB | {card} | {published} | {ours} | {ratio} | {verdict} | "
        f"{reserved} |"
    )


def _words(verdict: Verdict) -> str:
    return verdict.replace("_", " ")
