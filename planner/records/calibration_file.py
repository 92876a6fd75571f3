"""Calibrations as small JSON files: strict reading,
and refusal of files that other formulas were fitted with.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import (
    Calibration,
    Environment,
    Knob,
    Offset,
    Support,
    formulas_version,
)
from planner.domain.uncertainty.hierarchy import FREEDOM, PRIOR_BY_NAME, Level
from planner.domain.uncertainty.interval import Quantity, Spread, SpreadKey, SpreadOf
from planner.errors import InputFileError, UnknownNameError, UsageError
from planner.files.checking import first_problem
from planner.files.reading import read_text
from planner.files.structured import json_value
from planner.files.writing import whole_file
from planner.units import MIB

CALIBRATION_SCHEMA_ID: Final = "planner/calibration@1"
DEFAULT_CALIBRATION = "default"
NO_CALIBRATION = "none"
NAME_PATTERN = r"^[A-Za-z0-9._-]{1,60}$"
RESERVED_NAMES = (DEFAULT_CALIBRATION, NO_CALIBRATION)
_MAX_BYTES = 4 * MIB

# Beyond these no number is physical: every coefficient has bounds of its own that are narrower
# (``Prior.low``, ``Prior.high``).
MAX_OFFSET = 1000.0
_MAX_SCORE = 100.0
_MAX_ROWS = 1_000_000_000
_MAX_CHARS = 1000
_MAX_ITEMS = 10_000

Name = Annotated[str, Field(max_length=_MAX_CHARS)]
Names = Annotated[list[Name], Field(max_length=_MAX_ITEMS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Shift = Annotated[float, Field(ge=-MAX_OFFSET, le=MAX_OFFSET)]
Score = Annotated[float, Field(ge=-_MAX_SCORE, le=_MAX_SCORE)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=_MAX_ROWS)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class KnobPart(_Part):
    """Which number: coefficient, level and key."""

    coefficient: Name
    level: Level
    key: Name


class OffsetPart(_Part):
    """A fitted number, as its distance from the prior."""

    knob: KnobPart
    offset: Shift
    spread: Annotated[float, Field(ge=0, le=MAX_OFFSET)]


class SpreadKeyPart(_Part):
    """What a distribution is of; empty: of all."""

    of: Quantity
    lengths: Literal["fixed", "natural", ""]
    level: Literal["allocated", ""] = ""


class SpreadPart(_Part):
    """Distribution of the logarithm of measured over predicted, over the scale of each prediction,
    on unseen sources.
    """

    key: SpreadKeyPart
    probabilities: Annotated[list[Share], Field(min_length=2, max_length=_MAX_ITEMS)]
    scores: Annotated[list[Score], Field(min_length=2, max_length=_MAX_ITEMS)]
    n_rows: Count
    n_groups: Count


class SupportPart(_Part):
    """What the calibrated records cover."""

    generations: Names
    gpus: Names
    families: Names
    methods: Names
    engines: Names = Field(default_factory=list)
    vendors: Names = Field(default_factory=list)


class EnvironmentPart(_Part):
    """Where the records of a personal calibration were measured; empty where they do not say."""

    gpu: Annotated[Name, Field(min_length=1)]
    stacks: Names
    host: Name
    machine: Name
    drivers: Names


class CalibrationDocument(_Part):
    """A calibration.  ``formulas`` must be the version of the formulas that read it."""

    schema_: Literal["planner/calibration@1"] = Field(default=CALIBRATION_SCHEMA_ID, alias="schema")
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    formulas: Name
    offsets: Annotated[list[OffsetPart], Field(max_length=_MAX_ITEMS)]
    spreads: Annotated[list[SpreadPart], Field(max_length=_MAX_ITEMS)]
    support: SupportPart
    coverage: Annotated[list[tuple[SpreadOf, Share]], Field(max_length=_MAX_ITEMS)]
    n_rows: Annotated[int, Field(ge=0, le=_MAX_ROWS)]
    groups: Names
    machine: Name
    environment: EnvironmentPart | None = None
    priors: Annotated[dict[Name, Finite], Field(max_length=_MAX_ITEMS)] = {}
    """Priors that the offsets start from, for people."""


def personal_dir() -> Path:
    """Folder of calibrations of one's own: below ``$XDG_CONFIG_HOME``, or ``~/.config``.

    Raises:
        UsageError: neither is known.
    """
    root = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(root) if root else Path.home() / ".config") / "finetune-planner" / "calibration"
    except RuntimeError:
        raise UsageError(
            "no home directory to keep calibrations in; set XDG_CONFIG_HOME to a folder"
        ) from None


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
    except OSError as error:
        raise InputFileError(path, f"cannot be written: {error.strerror or error}") from None
    # Two that write one name at once: a whole file of one of them.
    with whole_file(path) as stream:
        stream.write(text.encode())
    return path


def read_calibration(path: Path) -> Calibration:
    """The calibration that a file holds.

    Raises:
        InputFileError: missing, too large, malformed, or fitted with other formulas; says how to refit it.
    """
    document = read_document(path)
    if document.formulas != formulas_version():
        raise InputFileError(path, _stale(document, path))
    return calibration_of(document, path)


def read_document(path: Path) -> CalibrationDocument:
    """The content of a calibration file of any formulas.

    Raises:
        InputFileError: not a regular file, unreadable, too large, malformed,
        or with numbers that nothing physical has.
    """
    data = json_value(path, read_text(path, _MAX_BYTES))
    if not isinstance(data, dict) or data.get("schema") != CALIBRATION_SCHEMA_ID:
        raise InputFileError(path, f"no calibration file: its schema is not '{CALIBRATION_SCHEMA_ID}'")
    # Up to formulas 9 a fit chose how wide causes make intervals; such a file is refused for its formulas.
    data.pop("scale", None)
    try:
        return CalibrationDocument.model_validate(data)
    except ValidationError as error:
        raise InputFileError(path, f"no calibration file: {first_problem(error)}") from None


def _stale(document: CalibrationDocument, path: Path) -> str:
    """What is wrong with a calibration of other formulas,
    and the command that makes it anew in the same place.
    """
    name = f" --name {document.name}" if document.machine else ""
    out = "" if document.machine and path.parent == personal_dir() else f" --out {path.parent}"
    versions = f"was fitted with formulas {document.formulas}, these are {formulas_version()}"
    return f"{versions}; fit again: plan calibrate RECORDS...{name}{out}"


def matching_calibrations(scenario: Scenario) -> tuple[tuple[str, Calibration | InputFileError], ...]:
    """Personal calibrations made where ``scenario`` would run, by name,
    each with its content or why it cannot be used.

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
        # ``none`` is no name that one may have meant: "nearest: none" says that nothing is near.
        names = ", ".join((*dict.fromkeys(known), NO_CALIBRATION))
        raise UnknownNameError("calibration", name[:60], known, hint=f"allowed: {names}")
    return read_calibration((personal_dir() if name in own else shipped) / f"{name}.json")


def personal_names() -> list[str]:
    """Names of the calibrations of one's own; ``default`` and ``none`` are never among them."""
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
        InputFileError: it names a coefficient that does not exist, or its distributions are malformed;
        names ``path``.
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
        offsets=tuple(
            Offset(Knob(**each["knob"]), each["offset"], each["spread"]) for each in values["offsets"]
        ),
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
    )


def _environment_of(document: CalibrationDocument) -> Environment | None:
    part = document.environment
    if part is None:
        return None
    return Environment(part.gpu, tuple(part.stacks), part.host, part.machine, tuple(part.drivers))
