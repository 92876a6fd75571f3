"""What Python gets of one answer: plain numbers with their units, and the documents of the command line."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planner.domain.prediction import Verdict
from planner.domain.scenario import Assumption
from planner.domain.term import Phase
from planner.domain.uncertainty.interval import Interval
from planner.errors import DoesNotFit
from planner.report.prediction.subject import Level, Subject
from planner.searching.levers import Lever
from planner.searching.stack_needs import StackNeed

if TYPE_CHECKING:
    from rich.console import Console

REPORT_COLUMNS = 80


@dataclass(frozen=True, slots=True)
class Peak:
    """Most bytes on one GPU, as three meters show them;
    an interval is ``None`` without a calibration that knows it.

    ``allocated_bytes``: ``torch.cuda.max_memory_allocated``.  ``reserved_bytes``:
    ``torch.cuda.max_memory_reserved``.  ``driver_bytes``: what ``nvidia-smi`` shows of this job on a card
    with this limit.  ``phase``: when that is.  Intervals hold 90 % of measurements, in bytes.
    """

    phase: Phase
    allocated_bytes: int
    reserved_bytes: int
    driver_bytes: int
    allocated_interval: Interval | None
    reserved_interval: Interval | None
    driver_interval: Interval | None


@dataclass(frozen=True, slots=True)
class Host:
    """Host RAM in bytes.  ``available_bytes`` is ``None`` where nobody said how much a node has:
    then it is not judged.

    ``needs_bytes``: what a node must have.  ``peak_bytes``: the most that a node shows, with what is given
    back under pressure.  ``process_bytes``: the peak of one process, with its interval (90 % of
    measurements).
    """

    needs_bytes: int
    peak_bytes: int
    process_bytes: int
    process_interval: Interval | None
    available_bytes: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step of the whole job.

    ``seconds`` with the interval that holds 90 % of measurements (``None`` without a calibration that knows
    it).  ``tokens_per_s``: real tokens, padding left out.  ``mfu``: model FLOP utilisation, a fraction
    (``None``: rate unknown).
    """

    seconds: float
    interval: Interval | None
    samples_per_s: float
    tokens_per_s: float
    mfu: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """The whole run: ``samples`` of one pass, ``epochs`` passes, seconds,
    and US dollars where a price was given.
    """

    samples: int
    epochs: float
    seconds: float | None
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class Term:
    """``n_bytes`` of one kind on one GPU.

    ``level``: the lowest of the three totals that holds it.  ``at_peak``: whether it is alive in the phase of
    the peak.  ``formula`` names the function that computed it.
    """

    name: str
    label: str
    n_bytes: int
    level: Level
    at_peak: bool
    formula: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is predicted of one job; the numbers are those of ``plan --json``.

    Attributes:
        verdict: ``fits``, ``does_not_fit``, ``uncertain``, ``host_memory_short`` or ``no_verdict``.
        probability: that the job fits the GPU, 0 to 1; ``None`` without a calibration or a limit.
        why: the verdict's reason in one sentence.
        needs_bytes: minimum memory of one GPU: this decides whether the job fits.
        limit_bytes: what the job may use of one GPU; ``None`` where that is unknown.
        peak: what the meters show on one GPU.
        host: host RAM.
        step: one optimizer step; ``None`` where the rates of the card are unknown.
        run: the whole run; ``None`` where no samples were given.
        levers: what could be changed, the cheapest first.
        stacks: what the common software stacks would need, where none was given.
        terms: bytes by kind, those of the peak first, the largest first.
        assumptions: every setting with its value and where that comes from.
        warnings: sentences.
        calibration: name of the fitted coefficients, or ``uncalibrated``.
        exit_code: what ``plan`` would end with.
    """

    verdict: Verdict
    probability: float | None
    why: str
    needs_bytes: int
    limit_bytes: int | None
    peak: Peak
    host: Host
    step: Step | None
    run: Run | None
    levers: tuple[Lever, ...]
    stacks: tuple[StackNeed, ...]
    terms: tuple[Term, ...]
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    calibration: str
    exit_code: int
    _subject: Subject = field(repr=False, compare=False)

    @property
    def fits(self) -> bool:
        """Whether the verdict is ``fits``; an uncertain job does not count."""
        return self.verdict == "fits"

    @property
    def tokens_per_s(self) -> float | None:
        """Real tokens per second of the whole job; ``None`` where the rates of the card are unknown."""
        return None if self.step is None else self.step.tokens_per_s

    def raise_if_short(self) -> None:
        """Raise where GPU memory or host RAM is short; an uncertain job passes.

        Raises:
            DoesNotFit: with the reason, and this answer as its ``answer``.
        """
        if self.verdict in ("does_not_fit", "host_memory_short"):
            raise DoesNotFit(f"does not fit: {self.why}", self)

    def to_json(self) -> str:
        """The document that ``plan --json`` writes, ending in a newline."""
        from planner.report.prediction.to_json import to_json

        return to_json(self._subject)

    def to_dict(self) -> dict[str, Any]:
        """The document that ``plan --json`` writes, as a table."""
        document: dict[str, Any] = json.loads(self.to_json())
        return document

    def render(self, columns: int = REPORT_COLUMNS, *, details: bool = False) -> str:
        """The report of the command line as plain text of so many columns;
        with ``details`` that of ``--details``.
        """
        from planner.report.prediction.sections import build_sections
        from planner.report.prediction.short import short_text
        from planner.report.render.human import to_text

        console = plain_console(columns)
        return (
            to_text(build_sections(self._subject), console) if details else short_text(self._subject, console)
        )

    def __str__(self) -> str:
        return self.render().rstrip("\n")


@dataclass(frozen=True, slots=True)
class FileAnswer(Answer):
    """The answer to a config file.

    ``path``: the file.  ``tool``: the program that it is for, with the version whose defaults hold.
    ``flags``: the same job in words of ``plan``.  ``remarks``: keys that are not counted as they stand, as
    sentences.  ``ignored``: unknown keys, as ``file:key``.
    """

    path: str
    tool: str
    flags: str
    remarks: tuple[str, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileFailure:
    """A config file that could not be answered: ``error`` says why, in one sentence;
    ``exit_code`` is that of ``plan check``.
    """

    path: str
    tool: str
    error: str
    exit_code: int

    @property
    def fits(self) -> bool:
        """False: nothing is known."""
        return False

    @property
    def verdict(self) -> Verdict:
        """``no_verdict``."""
        return "no_verdict"

    def __str__(self) -> str:
        return self.error


def plain_console(columns: int) -> Console:
    """A console for plain text of so many columns."""
    from planner.report.render.human import make_console

    console = make_console(io.StringIO())
    console.width = columns
    return console
