"""Recorded allocator histories on the disk: JSON lines, compressed.  Plain Python; never a pickle.

The first line holds ``schema``, the device's index, ``allocator_settings`` and ``phase_marks``; every other line is one entry of
the history as ``[action, address, bytes, stream, time_us]``.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputFileError
from planner.units import GIB, format_bytes

HISTORY_SCHEMA_ID = "finetune-planner/alloc-history/1"
_FIELDS = ("action", "addr", "size", "stream", "time_us")
_MAX_BYTES = 2 * GIB

PhaseMarks = Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    """What ``measure.trace.history`` takes: the history of one device (as device 0) and when each phase began."""

    history: Mapping[str, Any]
    phase_marks: tuple[tuple[int, str], ...]


def pack_history(snapshot: Mapping[str, Any], device: int, phase_marks: PhaseMarks) -> bytes:
    """The compressed file of one device's history; ``snapshot`` is that of ``torch.cuda.memory._snapshot``."""
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
        InputFileError: missing, not such a file, torn, or larger than 2 GiB when expanded; names the line.
    """
    file = Path(path)
    entries: list[dict[str, Any]] = []
    header: dict[str, Any] = {}
    expanded = 0
    try:
        with gzip.open(file, "rb") as stream:
            for number, line in enumerate(stream, 1):
                expanded += len(line)
                if expanded > _MAX_BYTES:
                    raise InputFileError(file, f"expands to more than {format_bytes(_MAX_BYTES)}", number)
                value = json.loads(line)
                if number == 1:
                    header = _header(file, value)
                    continue
                if not isinstance(value, list) or len(value) != len(_FIELDS):
                    raise InputFileError(file, f"an entry must be a list of {len(_FIELDS)} values", number)
                entries.append(dict(zip(_FIELDS, value, strict=True)))
    except (OSError, EOFError, ValueError) as error:
        raise InputFileError(file, f"not an allocator history: {error}") from None
    if not header:
        raise InputFileError(file, "the history is empty")
    history = {"device_traces": [entries], "allocator_settings": header["allocator_settings"]}
    return RecordedHistory(history, tuple((int(time), str(phase)) for time, phase in header["phase_marks"]))


def _header(file: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("schema") != HISTORY_SCHEMA_ID:
        raise InputFileError(file, f"the schema must be '{HISTORY_SCHEMA_ID}'; a newer one needs a newer planner", 1)
    return value
