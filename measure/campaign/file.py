"""A campaign file (TOML) -> its cases.

Top level: ``schema = 1``, ``title``, and optionally ``[defaults]``, any number of ``[[grid]]`` and of
``[[case]]``.  Keys are the names of ``REQUEST_FIELDS`` and of the options of a run (``workload``, ``steps``,
``memory_limit``); ``repeat`` says how often a case is run.  In a grid a list is an axis: every combination is
a case.  A model that is a path is meant from the file's folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measure.run.cases.case import RunOptions, option_names
from measure.run.cases.run_options import checked_options, memory_limit_bytes
from planner.errors import InputFileError, UnknownNameError, UsageError, show
from planner.files.structured import read_toml
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.request import from_flags, require

SCHEMA = 1
MAX_CASES = 10_000
_SECTIONS = ("schema", "title", "defaults", "grid", "case")
_REPEAT = "repeat"
_MAX_REPEAT = 100


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """One case of a campaign: what it says about the job, how it is measured,
    and which repeat it is, from 0.
    """

    values: Mapping[str, Any]
    options: RunOptions
    number: int = 0


@dataclass(frozen=True, slots=True)
class Campaign:
    """A file of cases, in the order of the file."""

    title: str
    cases: tuple[PlannedCase, ...]

    def with_histories(self) -> Campaign:
        """The same cases, each keeping the allocator's history."""
        cases = tuple(replace(case, options=replace(case.options, history=True)) for case in self.cases)
        return Campaign(self.title, cases)


def read_campaign(path: str | Path) -> Campaign:
    """Cases of a campaign file.

    Raises:
        InputFileError: missing, too large, not TOML, an unknown key, a value that cannot be used,
        or no cases.
    """
    file = Path(path)
    table = _read(file)
    if unknown := [key for key in table if key not in _SECTIONS]:
        raise InputFileError(file, str(UnknownNameError("key", show(unknown[0]), _SECTIONS)))
    if table.get("schema") != SCHEMA:
        given = table.get("schema")
        found = show(given) if isinstance(given, int | None) else "no number"
        raise InputFileError(
            file, f"schema must be {SCHEMA}, but it is {found}; a newer one needs a newer planner"
        )
    defaults = _section(file, "defaults", table.get("defaults", {}))
    cases: list[PlannedCase] = []
    for place, entry in _entries(file, table):
        try:
            cases.extend(_planned({**defaults, **entry}, file.parent))
        except UsageError as error:
            raise InputFileError(file, f"{place}: {error}") from None
        if len(cases) > MAX_CASES:
            raise InputFileError(file, f"more than {MAX_CASES:,} cases")
    if not cases:
        raise InputFileError(file, "holds no cases: write [[case]] or [[grid]]")
    return Campaign(str(table.get("title", file.stem)), tuple(cases))


def _read(file: Path) -> dict[str, Any]:
    table = read_toml(file)
    if table and not any(key in _SECTIONS for key in table):
        raise InputFileError(file, f"not a campaign file: it has none of the keys {', '.join(_SECTIONS)}")
    return table


def _entries(file: Path, table: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every case with its place; grids multiplied out."""
    for kind in ("case", "grid"):
        sections = table.get(kind, [])
        if not isinstance(sections, list):
            raise InputFileError(file, f"{kind} must be written [[{kind}]]")
        for number, section in enumerate(sections, 1):
            place = f"{kind} {number}"
            entry = _section(file, place, section)
            if kind == "case":
                yield place, entry
                continue
            axes = [
                [(key, each) for each in (value if isinstance(value, list) else [value])]
                for key, value in entry.items()
            ]
            for combination in itertools.islice(itertools.product(*axes), MAX_CASES + 1):
                yield place, dict(combination)


def _section(file: Path, place: str, section: object) -> dict[str, Any]:
    if not isinstance(section, dict):
        raise InputFileError(file, f"{place} must be a table")
    known = (*REQUEST_FIELDS, *option_names(), "memory_limit", _REPEAT)
    entry = {}
    for key, value in section.items():
        name = key.replace("-", "_")
        if name not in known or name == "memory_limit_bytes":
            raise InputFileError(file, f"{place}: {UnknownNameError('key', show(key), known)}")
        entry[name] = value
    return entry


def _planned(entry: Mapping[str, Any], folder: Path) -> Iterator[PlannedCase]:
    given = {name: value for name, value in entry.items() if name in REQUEST_FIELDS}
    chosen = {name: value for name, value in entry.items() if name not in REQUEST_FIELDS}
    repeat = chosen.pop(_REPEAT, 1)
    if isinstance(repeat, bool) or not isinstance(repeat, int) or not 1 <= repeat <= _MAX_REPEAT:
        raise UsageError(f"repeat must be a whole number from 1 to {_MAX_REPEAT}, but it is {show(repeat)}")
    if "memory_limit" in chosen:
        chosen["memory_limit_bytes"] = memory_limit_bytes(str(chosen.pop("memory_limit")))
    model = given.get("model")
    if isinstance(model, str) and (model.startswith(".") or model.endswith(".json")):
        given["model"] = str(folder / model)
    request = from_flags(given)
    require(request, "model", "recipe")
    values = {name: each.value for name, each in request.values.items()}
    options = checked_options(chosen)
    for number in range(repeat):
        yield PlannedCase(values, options, number)
