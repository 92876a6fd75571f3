"""Recorded histories on the disk: what is packed is read back, and what is no history is refused."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from measure.cli.main import main
from planner.allocator.documents import history_file
from planner.allocator.documents.history import events_from_history, reserved_timeline
from planner.allocator.documents.history_file import pack_history, read_history
from planner.allocator.events import AllocEvent, write_jsonl
from planner.errors import InputFileError
from planner.units import MIB


def entry(action: str, address: int, n_bytes: int, time_us: int) -> dict[str, Any]:
    """One entry as torch's snapshot has it, with frames that are not kept."""
    return {
        "action": action,
        "addr": address,
        "size": n_bytes,
        "stream": 0,
        "time_us": time_us,
        "frames": [{"name": "f"}],
    }


SNAPSHOT = {
    "device_traces": [
        [],
        [
            entry("segment_alloc", 4096, 20 * MIB, 10),
            entry("alloc", 4096, 5 * MIB, 11),
            entry("free_requested", 4096, 5 * MIB, 30),
            entry("free_completed", 4096, 5 * MIB, 30),
        ],
    ],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
}
MARKS = [(5, "load"), (20, "forward")]


def test_a_history_comes_back(tmp_path: Path) -> None:
    """Entries, settings and phases of one device survive the file, as device 0;
    the same history gives the same bytes.
    """
    path = tmp_path / "h.jsonl.gz"
    packed = pack_history(SNAPSHOT, 1, MARKS)
    assert packed == pack_history(SNAPSHOT, 1, MARKS)
    path.write_bytes(packed)
    recorded = read_history(path)
    events = events_from_history(recorded.history, phase_marks=recorded.phase_marks)
    assert [(event.action, event.n_bytes, event.phase) for event in events] == [
        ("alloc", 5 * MIB, "load"),
        ("free", 5 * MIB, "forward"),
    ]
    assert reserved_timeline(recorded.history) == [20 * MIB]


def test_the_command_compares_replay_and_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One allocation of 5 MiB takes a segment of 20 MiB in the model, as it did in the recording;
    in 10 MiB it does not fit.
    """
    path = tmp_path / "h.jsonl.gz"
    path.write_bytes(pack_history(SNAPSHOT, 1, MARKS))
    assert main(["replay", str(path)]) == 0
    assert "replayed 20.0 MiB, recorded 20.0 MiB" in capsys.readouterr().out
    assert main(["replay", str(path), "--fits", "10MiB"]) == 3


def test_a_history_that_goes_on_with_less_room_is_uncertain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The events of the same test of a trace (test_timeline.py), in MiB."""
    sizes = [("alloc", 1, 60), ("free", 1, 60), ("alloc", 2, 70), ("alloc", 3, 10), ("free", 2, 70)]
    trace = [
        entry(action if action == "alloc" else name, number << 30, size * MIB, 10 + step)
        for step, (action, number, size) in enumerate([*sizes, ("alloc", 4, 76)])
        for name in ("free_requested", "free_completed")[: 1 + (action == "free")]
    ]
    path = tmp_path / "h.jsonl.gz"
    path.write_bytes(pack_history({**SNAPSHOT, "device_traces": [trace]}, 0, []))
    codes = {size: main(["replay", str(path), "--fits", f"{size}MiB"]) for size in (84, 129, 132, 136)}
    assert codes == {84: 3, 129: 0, 132: 4, 136: 0}
    capsys.readouterr()
    assert main(["replay", str(path), "--fits", "132MiB", "--json"]) == 4
    assert 86 * MIB <= json.loads(capsys.readouterr().out)["less_room_bytes"] < 132 * MIB


HEADER = {
    "schema": "finetune-planner/alloc-history/1",
    "device": 0,
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
    "phase_marks": [[5, "load"]],
}
ENTRY = ["alloc", 4096, 512, 0, 10]


def packed(header: object, *entries: object) -> bytes:
    """A history of this header and these entries; texts stand as they are."""
    lines = [each if isinstance(each, str) else json.dumps(each) for each in (header, *entries)]
    return gzip.compress("\n".join(lines).encode(), mtime=0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            packed({name: value for name, value in HEADER.items() if name != "phase_marks"}),
            ":1: missing key 'phase_marks'",
        ),
        (
            packed({name: value for name, value in HEADER.items() if name != "allocator_settings"}),
            ":1: missing key 'allocator_s",
        ),
        (packed(HEADER | {"phase_marks": 5}), ":1: key 'phase_marks'"),
        (packed(HEADER | {"phase_marks": [[5]]}), ":1: missing key 'phase_marks.0.1'"),
        (packed(HEADER | {"phase_marks": [[-1, "load"]]}), ":1: key 'phase_marks.0.0'"),
        (packed(HEADER | {"phase_marks": [["x", "load"]]}), ":1: key 'phase_marks.0.0'"),
        (packed(HEADER | {"allocator_settings": [1]}), ":1: key 'allocator_settings'"),
        (packed(HEADER | {"colour": 1}), ":1: unknown key 'colour'"),
        (packed(HEADER | {"device": 10**30}), ":1: key 'device'"),
        (packed("[" * 200_000), ": not valid JSON: nested too deeply"),
        (packed(HEADER, "[" * 200_000), ":2: an entry must be a list of the 5 values"),
        (packed(HEADER, ENTRY, '["alloc", 1, 2, 0'), ":3: not valid JSON"),
        (packed(HEADER, [*ENTRY, 1]), ":2: an entry must be"),
        (packed(HEADER, {"action": "alloc"}), ":2: an entry must be"),
        (packed(HEADER, ["grow", *ENTRY[1:]]), ":2: the action is none"),
        (packed(HEADER, [None, *ENTRY[1:]]), ":2: the action is none"),
        (packed(HEADER, ["alloc", 1, -512, 0, 10]), ":2: addresses, bytes"),
        (packed(HEADER, ["alloc", 1, 2**64, 0, 10]), ":2: addresses, bytes"),
        (packed(HEADER, ["alloc", 1, 512.0, 0, 10]), ":2: addresses, bytes"),
        (packed(HEADER, ["alloc", 1, True, 0, 10]), ":2: addresses, bytes"),
        (packed(HEADER, ["alloc", None, 512, 0, 10]), ":2: addresses, bytes"),
        (packed(HEADER, '["alloc", 1, ' + "9" * 5000 + ", 0, 10]"), ":2: "),
        (packed(HEADER, " " * 2 * MIB), ":2: a line of more than 1.0 MiB"),
        (packed(HEADER, "", ENTRY), ":2: an entry must be"),
    ],
    # Packed bytes are no name: workers would not agree on it.
    ids=lambda value: "history" if isinstance(value, bytes) else value,
)
def test_each_line_is_checked(
    tmp_path: Path, content: bytes, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 2 and one sentence that names the line; nothing is an internal error."""
    path = tmp_path / "h.jsonl.gz"
    path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    assert f"measure: {path}{problem}" in capsys.readouterr().err


def test_an_entry_that_is_ignored_may_lack_numbers(tmp_path: Path) -> None:
    """PyTorch writes no address where it ran out of memory."""
    path = tmp_path / "h.jsonl.gz"
    path.write_bytes(packed(HEADER, ENTRY, ["oom", None, 512, 0, 11], ["free_requested", 4096, 512, 0, 12]))
    events = events_from_history(read_history(path).history)
    assert [event.action for event in events] == ["alloc", "free_requested"]


def test_a_history_has_at_most_so_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than are read is refused with its line."""
    monkeypatch.setattr(history_file, "_BOUNDS", replace(history_file._BOUNDS, n_lines=3))
    path = tmp_path / "h.jsonl.gz"
    path.write_bytes(packed(HEADER, ENTRY, ENTRY))
    assert len(read_history(path).history["device_traces"][0]) == 2
    path.write_bytes(packed(HEADER, ENTRY, ENTRY, ENTRY))
    with pytest.raises(InputFileError, match=r"h\.jsonl\.gz:4: more than 3 lines"):
        read_history(path)


@pytest.mark.parametrize(
    "content",
    [
        b"not gzip",
        gzip.compress(b"", mtime=0),
        gzip.compress(b'{"schema": "other"}\n', mtime=0),
        gzip.compress(b"[1, 2]\n", mtime=0),
        pack_history(SNAPSHOT, 1, MARKS)[:-9],
        gzip.compress(
            b'{"schema": "finetune-planner/alloc-history/1", "allocator_settings": {}, '
            b'"phase_marks": []}\n[1]\n',
            mtime=0,
        ),
    ],
    ids=["no gzip", "empty", "other schema", "no header", "torn", "short entry"],
)
def test_what_is_no_history_is_refused(tmp_path: Path, content: bytes) -> None:
    """One sentence with the file; nothing is guessed."""
    path = tmp_path / "h.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=r"h\.jsonl\.gz"):
        read_history(path)


def test_events_of_a_trace_are_named_where_a_history_is_asked_for(tmp_path: Path) -> None:
    """They are no gzip, which says nothing of what to do."""
    path = tmp_path / "events.jsonl"
    write_jsonl(path, [AllocEvent("alloc", 0, 512)])
    with pytest.raises(InputFileError, match=r"events\.jsonl: the events of a trace.*measure trace --fits"):
        read_history(path)
