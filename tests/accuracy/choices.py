"""Readings of a document that only its own table settled:
what the held-out error is where they are read the other way.

``data/published/choices.toml`` lists each such choice with the alternative.  A fit that never saw a document
may not profit from what its table told the builders, so its error is also given with every choice replaced
where that makes it worse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from planner.calibration.score.rows import RowScore, score_record
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.calibration import Calibration
from planner.errors import InputFileError, UsageError
from planner.files.structured import read_toml
from tests.accuracy.published import published_dir

FILE_NAME = "choices.toml"
_KEYS = {"source", "question", "cases"}
_CASE_KEYS = {"select", "change", "scale"}


@dataclass(frozen=True, slots=True)
class Case:
    """Columns that select rows, and what the alternative does to them: new values,
    or factors of numbers (another unit).
    """

    select: Mapping[str, Any]
    change: Mapping[str, Any]
    scale: Mapping[str, float]

    def read_otherwise(self, record: RunRecord) -> RunRecord:
        """The record under the alternative; a number that it does not have stays away."""
        known = {name: getattr(record, name) for name in self.scale}
        scaled = {name: value * self.scale[name] for name, value in known.items() if value is not None}
        return replace(record, **self.change, **scaled)


@dataclass(frozen=True, slots=True)
class Choice:
    """One question that a table settled, or that nothing settles for certain,
    with its other reading by cases.
    """

    source: str
    question: str
    cases: tuple[Case, ...]

    def other_reading(self, record: RunRecord) -> RunRecord | None:
        """The record under the alternative; ``None`` where the choice does not concern it."""
        if record.source != self.source:
            return None
        for case in self.cases:
            if all(getattr(record, column) == value for column, value in case.select.items()):
                return case.read_otherwise(record)
        return None


def stored_choices() -> tuple[Choice, ...]:
    """The choices of ``data/published/choices.toml``.

    Raises:
        InputFileError: missing, malformed, or a column that records do not have.
    """
    path = published_dir() / FILE_NAME
    found = []
    for entry in read_toml(path).get("choice", []):
        if set(entry) != _KEYS:
            raise InputFileError(path, f"each choice needs exactly {', '.join(sorted(_KEYS))}")
        found.append(
            Choice(entry["source"], entry["question"], tuple(_case(each, path) for each in entry["cases"]))
        )
    return tuple(found)


def _case(entry: Mapping[str, Any], path: object) -> Case:
    if unknown := entry.keys() - _CASE_KEYS:
        raise InputFileError(
            str(path), f"unknown key '{min(unknown)}' of a case: {', '.join(sorted(_CASE_KEYS))} are known"
        )
    return Case(*(_columns(entry.get(key, {}), path) for key in ("select", "change", "scale")))


def _columns(values: Mapping[str, Any], path: object) -> Mapping[str, Any]:
    if unknown := values.keys() - set(RunRecord.__slots__):
        raise InputFileError(str(path), f"unknown column '{min(unknown)}'")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def worst_errors(
    rows: Sequence[RowScore],
    choices: Sequence[Choice],
    model_of: Callable[[RunRecord], Calibration],
    quantity: str,
) -> Mapping[str, float]:
    """Mean absolute error of each source that has choices,
    with every choice replaced where the alternative is worse.

    A choice is replaced as a whole, by the mean over the rows it concerns, and choices one by one: their
    alternatives are not combined.
    """
    found: dict[str, float] = {}
    for source in dict.fromkeys(choice.source for choice in choices):
        mine = [row for row in rows if row.record.source == source]
        errors = {row.record.id: abs(value) for row in mine if (value := _error(row, quantity)) is not None}
        for choice in (each for each in choices if each.source == source):
            other = _other_errors(choice, mine, model_of, quantity)
            if other and fmean(other.values()) > fmean(errors[row] for row in other):
                errors |= other
        if errors:
            found[source] = fmean(errors.values())
    return found


def _other_errors(
    choice: Choice, rows: Sequence[RowScore], model_of: Callable[[RunRecord], Calibration], quantity: str
) -> dict[str, float]:
    found = {}
    for row in rows:
        record = choice.other_reading(row.record)
        if record is None or _error(row, quantity) is None:
            continue
        try:
            value = _error(score_record(record, model_of(row.record), quick=quantity != "memory"), quantity)
        except UsageError:
            continue
        if value is not None:
            found[row.record.id] = abs(value)
    return found


def _error(row: RowScore, quantity: str) -> float | None:
    comparison = getattr(row, quantity)
    return None if comparison is None else float(comparison.error)
