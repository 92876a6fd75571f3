"""Events as files, and the bytes that they ask for over time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.events import (
    EVENTS_SCHEMA_ID,
    NO_BLOCK,
    AllocEvent,
    allocated_timeline,
    read_jsonl,
    write_jsonl,
)
from planner.errors import InputFileError
from tests.files import written


def test_events_survive_a_file(tmp_path: Path) -> None:
    """What is written is read back unchanged, text in any script included, and no temporary file stays."""
    events = [
        AllocEvent("alloc", 1, 513, 2, "forward", "weights", "aten::mm", 'läyer"0\n'),
        AllocEvent("free", 1, 513),
        AllocEvent("empty_cache", NO_BLOCK, 0),
    ]
    write_jsonl(tmp_path / "events.jsonl", events)
    assert read_jsonl(tmp_path / "events.jsonl") == events
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_requested_bytes_over_time() -> None:
    """The walk counts requested bytes; memory that waits for another stream no longer counts."""
    events = [
        AllocEvent("alloc", 0, 5),
        AllocEvent("alloc", 1, 7),
        AllocEvent("free_requested", 0, 5),
        AllocEvent("free", 0, 5),
    ]
    assert allocated_timeline([*events, AllocEvent("free", 1, 7)]) == [5, 12, 7, 7, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[", "not valid JSON"),
        ("{}", "not an event"),
        ('["alloc",1,512,0,"","",""]', "not an event"),
        ('["alloc",1,512.0,0,"","","",""]', "not an event"),
        ('["alloc",true,512,0,"","","",""]', "not an event"),
        ('["alloc",1,-512,0,"","","",""]', "zero or more"),
        ('["alloc",1,99999999999999999999,0,"","","",""]', "64 bits"),
        ('["grow",1,512,0,"","","",""]', "action must be"),
        ("[" * 70_000, "a line of more than"),
    ],
)
def test_a_bad_line_names_its_place(tmp_path: Path, line: str, message: str) -> None:
    """Any line that is not an event is refused with file and line number."""
    path = tmp_path / "events.jsonl"
    write_jsonl(path, [AllocEvent("alloc", 0, 1)])
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(InputFileError, match=message) as caught:
        read_jsonl(path)
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize(
    "content", ["", "[]\n", '{"schema": "other/1"}\n', json.dumps({"schema": EVENTS_SCHEMA_ID}) + "\n"]
)
def test_a_file_without_the_header_is_refused(tmp_path: Path, content: str) -> None:
    """The first line must name the schema and the fields; an empty file is no stream."""
    path = written(tmp_path, content, "events.jsonl")
    with pytest.raises(InputFileError, match=r"header|must name"):
        read_jsonl(path)


def test_a_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    """Reading and writing where nothing can be are errors with the path, not tracebacks."""
    with pytest.raises(InputFileError, match="no such file"):
        read_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(InputFileError, match="cannot be written"):
        write_jsonl(tmp_path / "none" / "events.jsonl", [])


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """An interruption while writing keeps what was there, and leaves no temporary file."""
    path = tmp_path / "events.jsonl"
    write_jsonl(path, [AllocEvent("alloc", 0, 1)])

    def interrupted() -> Any:
        yield AllocEvent("alloc", 1, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_jsonl(path, interrupted())
    assert read_jsonl(path) == [AllocEvent("alloc", 0, 1)]
    assert [item.name for item in tmp_path.iterdir()] == ["events.jsonl"]
