"""Recorded histories on the disk: what is packed is read back, and what is no history is refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from measure.cli.main import main
from measure.trace.history import events_from_history, reserved_timeline
from measure.trace.history_file import pack_history, read_history
from planner.errors import InputFileError
from planner.units import MIB


def entry(action: str, address: int, n_bytes: int, time_us: int) -> dict[str, Any]:
    """One entry as torch's snapshot has it, with frames that are not kept."""
    return {"action": action, "addr": address, "size": n_bytes, "stream": 0, "time_us": time_us, "frames": [{"name": "f"}]}


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
    """Entries, settings and phases of one device survive the file, as device 0; the same history gives the same bytes."""
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
    """One allocation of 5 MiB takes a segment of 20 MiB in the model, as it did in the recording; in 10 MiB it does not fit."""
    path = tmp_path / "h.jsonl.gz"
    path.write_bytes(pack_history(SNAPSHOT, 1, MARKS))
    assert main(["replay", str(path)]) == 0
    assert "replayed 20.0 MiB, recorded 20.0 MiB" in capsys.readouterr().out
    assert main(["replay", str(path), "--fits", "10MiB"]) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"not gzip",
        gzip.compress(b""),
        gzip.compress(b'{"schema": "other"}\n'),
        gzip.compress(b"[1, 2]\n"),
        pack_history(SNAPSHOT, 1, MARKS)[:-9],
        gzip.compress(b'{"schema": "finetune-planner/alloc-history/1", "allocator_settings": {}, "phase_marks": []}\n[1]\n'),
    ],
    ids=["no gzip", "empty", "other schema", "no header", "torn", "short entry"],
)
def test_what_is_no_history_is_refused(tmp_path: Path, content: bytes) -> None:
    """One sentence with the file; nothing is guessed."""
    path = tmp_path / "h.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=r"h\.jsonl\.gz"):
        read_history(path)
