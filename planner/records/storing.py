"""Run records to JSONL: one line at a time, safe against a crash."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.domain.run_record import RunRecord
from planner.errors import InputFileError, UsageError
from planner.records.locking import locked
from planner.records.parsing import parse_json_line
from planner.records.record_schema import (
    ATTACHMENT_KEYS,
    RECORD_SCHEMA_ID,
    attachment_models,
    border_model,
)
from planner.units import KIB

_TAIL_CHUNK_BYTES = 64 * KIB


def append_jsonl(path: str | Path, record: RunRecord, attachments: Mapping[str, Any] | None = None) -> None:
    """Add one line and force it to the disk before returning.

    ``attachments`` are JSON values under ``raw``, ``environment`` or ``quality``.  An unfinished last line
    that a crash left is moved to ``<path>.torn`` first, so that it can never end up in the middle of the
    file.  Several processes may add to one file.

    Raises:
        UsageError: a value that the reader would refuse; nothing is written.
        InputFileError: the file cannot be written.
    """
    extra = dict(attachments or {})
    if unknown := sorted(set(extra) - set(ATTACHMENT_KEYS)):
        raise UsageError(f"a record cannot carry '{unknown[0]}'; it can carry {', '.join(ATTACHMENT_KEYS)}")
    _check_attachments(record, extra)
    try:
        line = json.dumps(
            {"schema": RECORD_SCHEMA_ID, **_checked(record), **extra}, ensure_ascii=False, allow_nan=False
        )
        content = line.encode("utf-8") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"record '{record.id}' cannot be written as JSON: {error}") from None
    target = Path(path)
    try:
        # Without a buffer, so that nothing is left to be written when the file is closed.  Who appends at the
        # same time waits: a line that another has not finished would look torn.
        with target.open("a+b", buffering=0) as stream, locked(stream):
            _set_torn_tail_aside(target, stream)
            _append(stream, content)
    except OSError as error:
        raise InputFileError(target, f"cannot be written: {error.strerror or error}") from None


def _append(stream: Any, content: bytes) -> None:
    """Add all of ``content`` or nothing: what a full disk cut off is taken back."""
    start = stream.seek(0, os.SEEK_END)
    try:
        while content:
            content = content[stream.write(content) :]
        os.fsync(stream.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            stream.truncate(start)
        raise


def _checked(record: RunRecord) -> dict[str, Any]:
    """Values of ``record`` after the same checks that the reader makes."""
    from pydantic import ValidationError

    values = asdict(record)
    try:
        border_model().model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"record '{record.id}': column '{first['loc'][0]}': {first['msg']}") from None
    return values


def _check_attachments(record: RunRecord, extra: Mapping[str, Any]) -> None:
    from pydantic import ValidationError

    for key, value in extra.items():
        try:
            attachment_models()[key].model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in (key, *first["loc"]))
            raise UsageError(f"record '{record.id}': {where}: {first['msg']}") from None


def _set_torn_tail_aside(target: Path, stream: Any) -> None:
    """Make ``target``, open as ``stream``, end in a complete line."""
    start, tail = _last_line(stream)
    if not tail.strip():
        return
    try:
        parse_json_line(tail)
    except ValueError:
        with target.with_name(target.name + ".torn").open("ab") as aside:
            _write_through(aside, tail.rstrip(b"\n") + b"\n")
        stream.truncate(start)
        return
    if not tail.endswith(b"\n"):
        _write_through(stream, b"\n")


def _last_line(stream: Any) -> tuple[int, bytes]:
    """Offset and bytes of the last line, read backwards in chunks."""
    position = stream.seek(0, os.SEEK_END)
    tail = b""
    while position > 0:
        step = min(_TAIL_CHUNK_BYTES, position)
        position -= step
        stream.seek(position)
        tail = stream.read(step) + tail
        # The newline that ends the last line does not begin it.
        cut = tail.rfind(b"\n", 0, len(tail) - 1)
        if cut >= 0:
            return position + cut + 1, tail[cut + 1 :]
    return 0, tail


def _write_through(stream: Any, content: bytes) -> None:
    stream.write(content)
    stream.flush()
    os.fsync(stream.fileno())
