"""Run records from CSV and JSONL files: bounded, strict, with file and line in every message."""

from __future__ import annotations

import csv
import glob
import io
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.domain.run_record import RunRecord
from planner.errors import InputFileError
from planner.files.malformed import MalformedError
from planner.files.reading import Bounds, decoded, read_bytes, read_lines
from planner.files.structured import parse_json
from planner.printing import printable
from planner.records.cells import parse_cell
from planner.records.record_schema import (
    ATTACHMENT_KEYS,
    COLUMNS,
    LIST_COLUMNS,
    RECORD_SCHEMA_ID,
    REQUIRED_COLUMNS,
    attachment_models,
    border_model,
)
from planner.records.record_set import Quarantined, RecordSet
from planner.units import MIB

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_RECORD_FILE_BYTES = 64 * MIB
RECORD_BOUNDS = Bounds(n_bytes=MAX_RECORD_FILE_BYTES, line_bytes=8 * MIB, n_lines=200_000)
_EMPTY = "the file is empty"
MAX_TOLD = 10
# Between two problems of one line.
BETWEEN = "; "
_MAX_ECHO_CHARS = 60
# A line of CSV that begins so is not read.
COMMENT = "#"
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class _Row:
    """One line as it was read; ``newer`` and ``broken`` say why there is no record in it."""

    line: int
    values: dict[str, Any]
    attachments: dict[str, Any] = field(default_factory=dict)
    newer: str = ""
    broken: str = ""


def read_records(
    paths: Iterable[str | Path], *, by_row: bool = False, may_be_none: bool = False
) -> RecordSet:
    """All records of ``paths``: files,
    or patterns such as ``data/published/*.csv`` that the shell did not expand.

    ``by_row``: what cannot be used is left out one by one, among ``quarantined``, instead of ending the
    reading.  These are lines that cannot be read or have a newer schema, ids that occur again, and patterns
    that match nothing beside files that exist.  At least one record must remain, unless ``may_be_none``.

    Raises:
        InputFileError: a pattern that matches nothing, a file that cannot be read, an unknown or missing
            column, a value out of range.  Without ``by_row`` also an id that occurs twice or a newer schema;
            with it, no record at all.
    """
    records: list[RunRecord] = []
    places: dict[str, str] = {}
    attachments: dict[str, Mapping[str, Any]] = {}
    quarantined: list[Quarantined] = []
    files = _expand(paths, quarantined, by_row)
    for path in files:
        for row in _reader_of(path)(path, quarantined):
            if row.newer:
                _leave_out(quarantined, Quarantined(str(path), row.line, row.newer, "newer_schema"), by_row)
                continue
            record = None if row.broken else _record(row)
            if not isinstance(record, RunRecord):
                problem = BETWEEN.join(record) if record else row.broken
                _leave_out(quarantined, Quarantined(str(path), row.line, problem, "unreadable"), by_row)
                continue
            if record.id in places:
                reason = f"the id '{_short(record.id)}' is already that of {places[record.id]}"
                _leave_out(quarantined, Quarantined(str(path), row.line, reason, "repeated_id"), by_row)
                continue
            records.append(record)
            places[record.id] = f"{path}:{row.line}"
            if row.attachments:
                attachments[record.id] = row.attachments
    if by_row and not records and not may_be_none:
        raise InputFileError(quarantined[0].path, f"no record is left: {told_at_once(quarantined)}")
    return RecordSet(tuple(records), tuple(map(str, files)), places, attachments, tuple(quarantined))


def told_at_once(lines: Iterable[Quarantined]) -> str:
    """What is wrong with lines, each with its number: the first ten problems, and how many more there are.

    Lines with one and the same problem, as those of a file that is no text, are told once.
    """
    numbers: dict[str, list[int]] = {}
    for each in lines:
        numbers.setdefault(each.reason, []).append(each.line)
    told: list[str] = []
    for reason, found in numbers.items():
        problems = reason.split(BETWEEN)
        if len(problems) == 1 and len(found) > 1:
            told.append(f"line {found[0]} and {len(found) - 1} more: {reason}")
        else:
            told += [f"line {line}: {one}" if line else one for line in found for one in problems]
    return _first_ten(told)


def _first_ten(problems: Sequence[str]) -> str:
    more = [f"and {len(problems) - MAX_TOLD} more"] if len(problems) > MAX_TOLD else []
    return BETWEEN.join([*problems[:MAX_TOLD], *more])


def _leave_out(quarantined: list[Quarantined], line: Quarantined, by_row: bool) -> None:
    if not by_row:
        raise InputFileError(line.path, _first_ten(line.reason.split(BETWEEN)), line.line or None)
    quarantined.append(line)


def _expand(paths: Iterable[str | Path], quarantined: list[Quarantined], by_row: bool) -> list[Path]:
    """Files behind ``paths``; a file that two patterns match is read once."""
    unmatched: list[Quarantined] = []
    found: dict[Path, Path] = {}
    for given in paths:
        pattern = str(given)
        try:
            names = [pattern]
            if _WILDCARDS & set(pattern) and not Path(pattern).exists():
                # The glob of pathlib takes no absolute pattern.
                names = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
            if not names:
                unmatched.append(Quarantined(pattern, 0, "no file matches this pattern", "no_file"))
            found.update({Path(name).resolve(): Path(name) for name in names})
        except (OSError, ValueError, RuntimeError) as error:
            # RuntimeError: a link to itself (Python 3.11 and 3.12).
            raise InputFileError(
                _short(pattern), f"cannot be read: {getattr(error, 'strerror', None) or error}"
            ) from None
    for each in unmatched:
        if not (by_row and found):
            raise InputFileError(each.path, each.reason)
        quarantined.append(each)
    if not found:
        raise InputFileError("records", "no file is named; give at least one CSV or JSONL file")
    return list(found.values())


def _reader_of(path: Path) -> Callable[[Path, list[Quarantined]], Iterator[_Row]]:
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl}
    if path.suffix.lower() not in readers:
        raise InputFileError(path, "not a record file: the name must end in .csv or .jsonl")
    return readers[path.suffix.lower()]


def _read_csv(path: Path, _quarantined: list[Quarantined]) -> Iterator[_Row]:
    text = decoded(path, _read_bytes(path))
    if text.count("\n") > RECORD_BOUNDS.n_lines:
        raise InputFileError(path, f"more than {RECORD_BOUNDS.n_lines:,} lines")
    if "\0" in text:
        raise InputFileError(
            path, "holds a NUL byte, which no text file does", text.count("\n", 0, text.index("\0")) + 1
        )
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    n_rows, line = 0, 1
    try:
        for cells in rows:
            start, line = line, rows.line_num + 1
            if not cells or cells[0].startswith(COMMENT):
                continue
            if header is None:
                header = _checked_header(path, cells, start)
                continue
            n_rows += 1
            if len(cells) != len(header):
                yield _Row(start, {}, broken=f"{len(cells)} cells, but the header has {len(header)} columns")
                continue
            yield _Row(
                start, {column: parse_cell(column, cell) for column, cell in zip(header, cells, strict=True)}
            )
    except csv.Error as error:
        raise InputFileError(path, f"not valid CSV: {error}", rows.line_num) from None
    if not n_rows:
        raise InputFileError(
            path, "no rows: a header alone; write one line for each run" if header else "no header line"
        )


def _checked_header(path: Path, cells: list[str], line: int) -> list[str]:
    """The names of the columns; all that is wrong with them is told at once, unless none is known:
    then nothing is repeated.
    """
    if not any(name in COLUMNS for name in cells):
        raise InputFileError(path, "not a file of records: the first line names no column of records", line)
    problems = [f"unknown column '{_short(name)}'" for name in cells if name not in COLUMNS]
    problems += [f"missing column '{name}'" for name in REQUIRED_COLUMNS if name not in cells]
    problems += [
        f"column '{_short(name)}' occurs twice" for name in dict.fromkeys(cells) if cells.count(name) > 1
    ]
    if problems:
        raise InputFileError(path, _first_ten(problems), line)
    return cells


def _read_jsonl(path: Path, quarantined: list[Quarantined]) -> Iterator[_Row]:
    lines = list(read_lines(path, replace(RECORD_BOUNDS, n_bytes=MAX_RECORD_FILE_BYTES)))
    if not lines:
        raise InputFileError(path, _EMPTY)
    lines[0] = lines[0].removeprefix(BOM_UTF8)
    filled = [number for number, line in enumerate(lines, 1) if line.strip()]
    if not filled:
        raise InputFileError(path, "holds no records")
    for number in filled:
        try:
            data = parse_json_line(lines[number - 1])
        except ValueError as error:
            if number == filled[-1]:
                quarantined.append(Quarantined(str(path), number, f"not a complete line of JSON: {error}"))
                return
            yield _Row(number, {}, broken=f"not valid JSON: {error}")
            continue
        yield _jsonl_row(number, data)


def parse_json_line(line: bytes) -> Any:
    """The JSON value of one line.

    Raises:
        ValueError: not UTF-8, not JSON, nested too deeply, a name given twice,
        or a number that JSON does not have.
    """
    try:
        return parse_json(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except MalformedError as error:
        place = "" if error.character is None else f" at character {error.character}"
        raise ValueError(f"{error.problem}{place}") from None


def _jsonl_row(line: int, data: Any) -> _Row:
    if not isinstance(data, dict):
        return _Row(line, {}, broken="a record must be a JSON object")
    schema = data.pop("schema", None)
    if isinstance(schema, str) and _is_newer(schema):
        return _Row(
            line,
            {},
            newer=(
                f"the schema '{_short(schema)}' is newer than '{RECORD_SCHEMA_ID}'; it needs a newer planner"
            ),
        )
    if schema != RECORD_SCHEMA_ID:
        found = "missing" if schema is None else "another"
        return _Row(line, {}, broken=f"the schema is {found} and must be '{RECORD_SCHEMA_ID}'")
    attachments = {key: data.pop(key) for key in ATTACHMENT_KEYS if key in data}
    lists = {name: tuple(data[name]) for name in LIST_COLUMNS if isinstance(data.get(name), list)}
    return _Row(line, data | lists, attachments, broken=_problem_of(attachments))


def _is_newer(schema: str) -> bool:
    name, _, version = RECORD_SCHEMA_ID.partition("@")
    found = re.fullmatch(rf"{name}@([0-9]{{1,6}})", schema)
    return found is not None and int(found[1]) > int(version)


def _problem_of(attachments: Mapping[str, Any]) -> str:
    """The first thing that is wrong with what a line carries beside the columns; empty where nothing is."""
    from pydantic import ValidationError

    for key, value in attachments.items():
        try:
            attachment_models()[key].model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in (key, *first["loc"]))
            return f"{_short(where)}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return ""


def _record(row: _Row) -> RunRecord | list[str]:
    """The record of a line, or what is wrong with each of its columns."""
    from pydantic import ValidationError

    try:
        checked = border_model().model_validate(row.values)
    except ValidationError as error:
        by_column = {
            detail["loc"][:1]: _describe(detail) for detail in reversed(error.errors(include_url=False))
        }
        return list(reversed(by_column.values()))
    return RunRecord(**{name: getattr(checked, name) for name in COLUMNS})


def _describe(detail: ErrorDetails) -> str:
    column = _short(detail["loc"][0]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        return f"unknown column '{column}'"
    if detail["type"] == "missing" or detail["input"] is None:
        return f"column '{column}' is missing or blank"
    return (
        f"column '{column}': {detail['msg'][:1].lower()}{detail['msg'][1:]}, but it is "
        f"{_short(detail['input'])}"
    )


def _short(value: object) -> str:
    """``value`` as a message may repeat it: one printable line of at most 60 characters."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    text = value if isinstance(value, str) else repr(value)
    shown = text if len(text) <= _MAX_ECHO_CHARS else text[:_MAX_ECHO_CHARS] + "..."
    return printable(shown)


def _read_bytes(path: Path) -> bytes:
    content = read_bytes(path, MAX_RECORD_FILE_BYTES)
    if not content:
        raise InputFileError(path, _EMPTY)
    return content
