"""Recorded allocator histories on the disk: JSON lines, compressed.  Plain Python; never a pickle.

The first line holds ``schema``, the device's index, ``allocator_settings`` and ``phase_marks``; every other
line is one entry of the history as ``[action, address, bytes, stream, time_us]``.
"""

from __future__ import annotations

import gzip
import io
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Annotated, Any, Literal, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.allocator.documents.history import ACTIONS, IGNORED
from planner.allocator.events import is_stream
from planner.errors import InputFileError
from planner.files.checking import first_problem
from planner.files.reading import Bounds, decoded, read_lines
from planner.files.structured import json_value
from planner.units import MIB

HISTORY_SCHEMA_ID = "finetune-planner/alloc-history/1"
_FIELDS = ("action", "addr", "size", "stream", "time_us")
_N_NUMBERS = len(_FIELDS) - 1
MAX_ENTRIES = 1_500_000
"""Entries of one history: a replay takes at most 650 bytes of memory for each (0.9 GiB),
and 30 to 60 us (a minute or more).
"""
_BOUNDS = Bounds(n_bytes=256 * MIB, line_bytes=1 * MIB, n_lines=MAX_ENTRIES + 1)
_MAX_NUMBER = 2**64 - 1
_MAX_DEVICE = 1024
_MAX_MARKS = 100_000
_A_STREAM = (
    "the events of a trace, and no history that measure run --history recorded; measure trace --fits SIZE "
    "replays a trace"
)

_Time = Annotated[int, Field(ge=0, le=_MAX_NUMBER)]
_Phase = Annotated[str, Field(max_length=100)]

PhaseMarks = Sequence[tuple[int, str]]


class HistoryHeader(BaseModel):
    """The first line.  ``phase_marks``: time in us at which each phase began, and its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["finetune-planner/alloc-history/1"] = Field(alias="schema")
    device: Annotated[int, Field(ge=0, le=_MAX_DEVICE)]
    allocator_settings: dict[str, Any]
    phase_marks: Annotated[list[tuple[_Time, _Phase]], Field(max_length=_MAX_MARKS)]


class HistoryEntries(Sequence[Mapping[str, Any]]):
    """Entries of a history, as those of torch's snapshot; held as plain numbers,
    because there are millions.
    """

    def __init__(self) -> None:
        self._actions: list[str] = []
        self._numbers = array("Q")

    def add(self, action: str, numbers: Sequence[int]) -> None:
        """One more entry: its action, and address, bytes, stream and time."""
        self._actions.append(intern(action))
        self._numbers.extend(numbers)

    def __len__(self) -> int:
        return len(self._actions)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return map(self._entry, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        places = range(len(self))[index]
        return self._entry(places) if isinstance(places, int) else [self._entry(place) for place in places]

    def _entry(self, place: int) -> Mapping[str, Any]:
        start = place * _N_NUMBERS
        address, size, stream, time_us = self._numbers[start : start + _N_NUMBERS]
        return {
            "action": self._actions[place],
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": time_us,
        }


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    """What ``planner.allocator.documents.history`` takes: the history of one device (as device 0)
    and when each phase began.
    """

    history: Mapping[str, Any]
    phase_marks: tuple[tuple[int, str], ...]


def pack_history(snapshot: Mapping[str, Any], device: int, phase_marks: PhaseMarks) -> bytes:
    """The compressed file of one device's history; ``snapshot`` is that of
    ``torch.cuda.memory._snapshot``.
    """
    header = {
        "schema": HISTORY_SCHEMA_ID,
        "device": device,
        "allocator_settings": snapshot.get("allocator_settings", {}),
        "phase_marks": [list(mark) for mark in phase_marks],
    }
    text = io.BytesIO()
    # No name and no time in the header, so that the same history gives the same bytes.
    with gzip.GzipFile(fileobj=text, mode="wb", filename="", mtime=0) as stream:
        stream.write(json.dumps(header, default=str).encode() + b"\n")
        for entry in snapshot["device_traces"][device]:
            stream.write(json.dumps([entry.get(name) for name in _FIELDS]).encode() + b"\n")
    return text.getvalue()


def read_history(path: str | Path) -> RecordedHistory:
    """The history that :func:`pack_history` packed.

    Raises:
        InputFileError: missing, not such a file, torn, or beyond the bounds when expanded; names the line.
    """
    file = Path(path)
    entries = HistoryEntries()
    header: HistoryHeader | None = None
    try:
        for number, line in enumerate(read_lines(file, _BOUNDS, packed=True), 1):
            if header is None:
                header = _header(file, line)
            else:
                _add(file, entries, line, number)
    except InputFileError:
        if is_stream(file):
            raise InputFileError(file, _A_STREAM) from None
        raise
    if header is None:
        raise InputFileError(file, "the history is empty")
    history = {"device_traces": [entries], "allocator_settings": header.allocator_settings}
    return RecordedHistory(history, tuple(header.phase_marks))


def _header(file: Path, line: bytes) -> HistoryHeader:
    value = json_value(file, decoded(file, line))
    if not isinstance(value, dict) or value.get("schema") != HISTORY_SCHEMA_ID:
        raise InputFileError(
            file, f"the schema must be '{HISTORY_SCHEMA_ID}'; a newer one needs a newer planner", 1
        )
    try:
        return HistoryHeader.model_validate(value)
    except ValidationError as error:
        raise InputFileError(file, first_problem(error), 1) from None


def _add(file: Path, entries: HistoryEntries, line: bytes, number: int) -> None:
    try:
        # An entry has one bracket and no brace, so none is nested.
        value = json.loads(line) if line.count(b"[") == 1 and b"{" not in line else None
    except ValueError:
        raise InputFileError(file, "not valid JSON", number) from None
    if not isinstance(value, list) or len(value) != len(_FIELDS):
        raise InputFileError(
            file, f"an entry must be a list of the {len(_FIELDS)} values {', '.join(_FIELDS)}", number
        )
    action, *numbers = value
    if not isinstance(action, str) or action not in ACTIONS:
        raise InputFileError(file, "the action is none that PyTorch 2.13 records", number)
    if action in IGNORED:
        # PyTorch leaves some of their fields out.
        numbers = [each if type(each) is int and 0 <= each <= _MAX_NUMBER else 0 for each in numbers]
    if not all(type(each) is int and 0 <= each <= _MAX_NUMBER for each in numbers):
        raise InputFileError(
            file, "addresses, bytes, streams and times are whole numbers of 64 bits, zero or more", number
        )
    entries.add(action, numbers)
