"""The stream of allocation events: what a trace or a recorded history says, before any allocator sees it.

A stream is a list of :class:`AllocEvent` in program order.  Sizes are the bytes that the program asked for;
rounding is the allocator's business.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from planner.errors import InputFileError, UsageError
from planner.files.reading import Bounds, read_lines
from planner.files.writing import whole_file
from planner.units import GIB, KIB

Action = Literal["alloc", "free_requested", "free", "empty_cache"]
ACTIONS: tuple[str, ...] = get_args(Action)

NO_BLOCK = -1
"""What an event names that concerns no allocation."""
EVENTS_SCHEMA_ID = "finetune-planner/alloc-events/1"
MAX_EVENTS = 10_000_000
_BOUNDS = Bounds(n_bytes=2 * GIB, line_bytes=64 * KIB, n_lines=MAX_EVENTS + 1)
_MAX_BRACKETS = 64
_MAX_SIGNED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AllocEvent:
    """One allocation or free of ``n_bytes`` requested bytes, or a call of ``torch.cuda.empty_cache``.

    ``block`` names the allocation; an id may be used again once it is free.  ``free_requested`` is the moment
    the program let go of memory that another stream still uses (``record_stream``): it no longer counts as
    allocated but cannot be reused before the ``free`` that follows.  A plain ``free`` alone is both at once.
    ``empty_cache`` gives what is not in use back to the card: it has no bytes, and its block is ``NO_BLOCK``.
    ``phase`` is one of ``planner.domain.term.PHASES``, ``term`` one of its term names, ``op`` the operator
    and ``module`` the module path; they may be empty where unknown.
    """

    action: Action
    block: int
    n_bytes: int
    stream: int = 0
    phase: str = ""
    term: str = ""
    op: str = ""
    module: str = ""


FIELDS: tuple[str, ...] = tuple(AllocEvent.__dataclass_fields__)
_TYPES: tuple[type, ...] = (str, int, int, int, str, str, str, str)


def allocated_timeline(events: Iterable[AllocEvent]) -> list[int]:
    """Requested bytes alive after each event, without rounding (torch calls this ``requested_bytes``).

    Raises:
        UsageError: a free of what is not alive, or an allocation of an id that is; names the event.
    """
    live: dict[int, int] = {}
    waiting: set[int] = set()
    total_bytes = 0
    timeline: list[int] = []
    for index, event in enumerate(events):
        block = event.block
        if event.action == "empty_cache":
            pass  # what the program holds stays
        elif event.action == "alloc":
            if block in live or block in waiting:
                raise UsageError(f"event {index}: block {block} is allocated twice; free it first")
            live[block] = event.n_bytes
            total_bytes += event.n_bytes
        elif event.action == "free" and block in waiting:
            waiting.remove(block)
        elif block in live:
            total_bytes -= live.pop(block)
            if event.action == "free_requested":
                waiting.add(block)
        else:
            raise UsageError(
                f"event {index}: block {block} is freed but not allocated; record the stream from its start"
            )
        timeline.append(total_bytes)
    return timeline


def write_jsonl(path: str | Path, events: Iterable[AllocEvent]) -> None:
    """Write a header line (schema, field names), then one JSON array per event.
    The file appears whole or not at all.

    Raises:
        InputFileError: the file cannot be written.
    """
    with whole_file(path) as stream:
        stream.write(_line({"schema": EVENTS_SCHEMA_ID, "fields": FIELDS}))
        for event in events:
            stream.write(_line(astuple(event)))


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def read_jsonl(path: str | Path) -> list[AllocEvent]:
    """Events of a file that :func:`write_jsonl` wrote, checked value by value.

    Raises:
        InputFileError: a file that is missing, too large, of another schema or with a malformed line;
        names the line.
    """
    source = Path(path)
    events: list[AllocEvent] = []
    line = 0
    for line, raw in enumerate(read_lines(source, _BOUNDS), 1):
        if line == 1:
            _check_header(source, _parse_line(source, raw, line))
        else:
            events.append(_event(source, _parse_line(source, raw, line), line))
    if line == 0:
        raise InputFileError(source, "an empty file; a stream of events starts with a header line")
    return events


def is_stream(path: Path) -> bool:
    """Whether a file begins as those that :func:`write_jsonl` writes."""
    try:
        _check_header(path, _parse_line(path, next(read_lines(path, _BOUNDS), b""), 1))
    except InputFileError:
        return False
    return True


def _parse_line(path: Path, raw: bytes, line: int) -> Any:
    try:
        # Neither an event nor the header has more brackets, so none is nested deeply.
        return json.loads(raw) if raw.count(b"[") + raw.count(b"{") <= _MAX_BRACKETS else None
    except ValueError:
        raise InputFileError(path, "not valid JSON", line) from None


def _check_header(path: Path, header: Any) -> None:
    if (
        not isinstance(header, dict)
        or header.get("schema") != EVENTS_SCHEMA_ID
        or header.get("fields") != list(FIELDS)
    ):
        raise InputFileError(
            path, f"not a stream of allocation events: the first line must name {EVENTS_SCHEMA_ID}", 1
        )


def _event(path: Path, values: Any, line: int) -> AllocEvent:
    if not isinstance(values, list) or tuple(map(type, values)) != _TYPES:
        raise InputFileError(
            path, f"not an event: expected the {len(FIELDS)} values {', '.join(FIELDS)}", line
        )
    if values[0] not in ACTIONS:
        raise InputFileError(path, f"the action must be {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}", line)
    if not 0 <= values[2] <= _MAX_SIGNED or not all(
        -_MAX_SIGNED <= number <= _MAX_SIGNED for number in values[1:4]
    ):
        raise InputFileError(path, "bytes must be zero or more, and all numbers fit in 64 bits", line)
    return AllocEvent(*values)
