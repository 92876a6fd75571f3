"""Calibrations as small JSON files: strict reading, and refusal of files that other formulas were fitted with."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.domain.calibration import Calibration, Knob, Offset, Support, formulas_version
from planner.domain.environment import Environment
from planner.domain.hierarchy import FREEDOM, PRIOR_BY_NAME, Level
from planner.domain.interval import Quantity, Spread, SpreadKey, SpreadOf
from planner.domain.scale import ScaleParts
from planner.domain.scenario import Scenario
from planner.errors import InputFileError, UnknownNameError, UsageError
from planner.units import MIB

CALIBRATION_SCHEMA_ID: Final = "planner/calibration@1"
DEFAULT_CALIBRATION = "default"
NO_CALIBRATION = "none"
PREVIOUS_CALIBRATION = "previous"
NAME_PATTERN = r"^[A-Za-z0-9._-]{1,60}$"
RESERVED_NAMES = (DEFAULT_CALIBRATION, NO_CALIBRATION, PREVIOUS_CALIBRATION)
_MAX_BYTES = 4 * MIB

Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class KnobPart(_Part):
    """Which number: coefficient, level and key."""

    coefficient: str
    level: Level
    key: str


class OffsetPart(_Part):
    """A fitted number, as its distance from the prior."""

    knob: KnobPart
    offset: Finite
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SpreadKeyPart(_Part):
    """What a distribution is of; empty: of all."""

    of: Quantity
    lengths: Literal["fixed", "natural", ""]


class SpreadPart(_Part):
    """Distribution of the logarithm of measured over predicted, over the scale of each prediction, on unseen sources."""

    key: SpreadKeyPart
    probabilities: Annotated[list[Share], Field(min_length=2)]
    scores: Annotated[list[Finite], Field(min_length=2)]
    n_rows: Annotated[int, Field(ge=1)]
    n_groups: Annotated[int, Field(ge=1)]


class SupportPart(_Part):
    """What the calibrated records cover."""

    generations: list[str]
    gpus: list[str]
    families: list[str]
    methods: list[str]


class ScalePart(_Part):
    """How much each cause of scatter counts in the scale of an interval; see ``ScaleParts`` of :mod:`planner.domain.scale`."""

    counted: Positive
    unknown_lengths: Positive
    order: Positive
    fixed_bytes: Positive
    machine: Positive


class EnvironmentPart(_Part):
    """Where the records of a personal calibration were measured; empty where they do not say."""

    gpu: Annotated[str, Field(min_length=1)]
    stacks: list[str]
    host: str
    machine: str
    drivers: list[str]


class CalibrationDocument(_Part):
    """A calibration.  ``formulas`` must be the version of the formulas that read it."""

    schema_: Literal["planner/calibration@1"] = Field(default=CALIBRATION_SCHEMA_ID, alias="schema")
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    formulas: str
    offsets: list[OffsetPart]
    spreads: list[SpreadPart]
    support: SupportPart
    coverage: list[tuple[SpreadOf, Share]]
    n_rows: Annotated[int, Field(ge=0)]
    groups: list[str]
    machine: str
    environment: EnvironmentPart | None = None
    scale: ScalePart | None = None
    """Only files of other formulas are without: these are read to explain what changed, and judge nothing."""
    priors: dict[str, Finite] = {}
    """Priors that the offsets start from, so that a file of other formulas can still be read as a previous one."""


def personal_dir() -> Path:
    """Folder of calibrations of one's own: below ``$XDG_CONFIG_HOME``, or ``~/.config``.

    Raises:
        UsageError: neither is known.
    """
    root = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(root) if root else Path.home() / ".config") / "finetune-planner" / "calibration"
    except RuntimeError:
        raise UsageError("no home directory to keep calibrations in; set XDG_CONFIG_HOME to a folder") from None


def write_calibration(calibration: Calibration, folder: Path) -> Path:
    """Write ``<folder>/<name>.json`` whole or not at all, and return its path.

    Raises:
        InputFileError: it cannot be written.
    """
    return write_document(document_of(calibration), folder)


def document_of(calibration: Calibration) -> CalibrationDocument:
    """What a file of ``calibration`` holds."""
    plain = {each.name: getattr(calibration, each.name) for each in fields(calibration) if each.init}
    priors = {name: prior.value for name, prior in PRIOR_BY_NAME.items()}
    return CalibrationDocument.model_validate({**plain, "priors": priors})


def write_document(document: CalibrationDocument, folder: Path) -> Path:
    """As :func:`write_calibration`."""
    path = folder / f"{document.name}.json"
    text = document.model_dump_json(by_alias=True, indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".json.new")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise InputFileError(path, f"cannot be written: {error.strerror or error}") from None
    return path


def read_calibration(path: Path) -> Calibration:
    """The calibration that a file holds.

    Raises:
        InputFileError: missing, too large, malformed, or fitted with other formulas; says how to refit it.
    """
    document = read_document(path)
    if document.formulas != formulas_version():
        raise InputFileError(path, _stale(document, path))
    if document.scale is None:
        raise InputFileError(path, "no calibration file: scale: Field required")
    return calibration_of(document, path)


def read_document(path: Path) -> CalibrationDocument:
    """The content of a calibration file of any formulas.

    Raises:
        InputFileError: missing, too large or malformed.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputFileError(path, "too large for a calibration")
        return CalibrationDocument.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputFileError(path, f"no calibration file: {where or 'content'}: {first['msg']}") from None


def _stale(document: CalibrationDocument, path: Path) -> str:
    """What is wrong with a calibration of other formulas, and the command that makes it anew in the same place."""
    name = f" --name {document.name}" if document.machine else ""
    out = "" if document.machine and path.parent == personal_dir() else f" --out {path.parent}"
    versions = f"was fitted with formulas {document.formulas}, these are {formulas_version()}"
    if document.name == PREVIOUS_CALIBRATION:
        return f"{versions}; it is kept to explain what changed (plan validate FILE --explain ROW), not to predict with"
    return f"{versions}; fit again: plan calibrate RECORDS...{name}{out}"


def matching_calibrations(scenario: Scenario) -> tuple[tuple[str, Calibration | InputFileError], ...]:
    """Personal calibrations made where ``scenario`` would run, by name, each with its content or why it cannot be used.

    A file that is no calibration at all is among them, because nobody can say what it was made for.
    """
    found: list[tuple[str, Calibration | InputFileError]] = []
    for name in personal_names():
        path = personal_dir() / f"{name}.json"
        try:
            document = read_document(path)
            environment = _environment_of(document)
            if environment is not None and environment.covers(scenario):
                found.append((name, read_calibration(path)))
        except InputFileError as error:
            found.append((name, error))
    return tuple(found)


def find_calibration(name: str, shipped: Path) -> Calibration:
    """A calibration by name (one's own before those that ship) or by the path of its file.

    Raises:
        UnknownNameError: there is none of that name.
        InputFileError: as :func:`read_calibration`.
    """
    if name.endswith(".json"):
        return read_calibration(Path(name))
    own = personal_names()
    known = [*own, *_names(shipped)]
    if name not in known:
        raise UnknownNameError("calibration", name[:60], (*dict.fromkeys(known), NO_CALIBRATION))
    return read_calibration((personal_dir() if name in own else shipped) / f"{name}.json")


def personal_names() -> list[str]:
    """Names of the calibrations of one's own; ``default``, ``previous`` and ``none`` are never among them."""
    try:
        return [name for name in _names(personal_dir()) if name not in RESERVED_NAMES]
    except UsageError:
        return []


def _names(folder: Path) -> list[str]:
    """Names of the calibrations in a folder; none where it cannot be read."""
    try:
        return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []
    except OSError:
        return []


def calibration_of(document: CalibrationDocument, path: Path) -> Calibration:
    """The calibration that a document describes.

    Raises:
        InputFileError: it names a coefficient that does not exist, or its distributions are malformed; names ``path``.
    """
    values: dict[str, Any] = document.model_dump()
    unknown = {each.knob.coefficient for each in document.offsets} - FREEDOM.keys()
    if unknown:
        raise InputFileError(path, f"names a coefficient that does not exist: {min(unknown)[:60]}")
    for each in document.spreads:
        if len(each.probabilities) != len(each.scores) or sorted(each.probabilities) != each.probabilities:
            raise InputFileError(path, "a distribution needs as many scores as increasing probabilities")
    return Calibration(
        name=document.name,
        date=document.date,
        formulas=document.formulas,
        offsets=tuple(Offset(Knob(**each["knob"]), each["offset"], each["spread"]) for each in values["offsets"]),
        spreads=tuple(
            Spread(
                key=SpreadKey(**each["key"]),
                probabilities=tuple(each["probabilities"]),
                scores=tuple(sorted(each["scores"])),
                n_rows=each["n_rows"],
                n_groups=each["n_groups"],
            )
            for each in values["spreads"]
        ),
        support=Support(**{name: tuple(keys) for name, keys in values["support"].items()}),
        coverage=tuple((of, share) for of, share in document.coverage),
        n_rows=document.n_rows,
        groups=tuple(document.groups),
        machine=document.machine,
        environment=_environment_of(document),
        scale=ScaleParts() if document.scale is None else ScaleParts(**document.scale.model_dump()),
    )


def _environment_of(document: CalibrationDocument) -> Environment | None:
    part = document.environment
    if part is None:
        return None
    return Environment(part.gpu, tuple(part.stacks), part.host, part.machine, tuple(part.drivers))
