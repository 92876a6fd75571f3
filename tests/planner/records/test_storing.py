"""Several processes write one file at once: every line whole, nothing lost,
nothing set aside that is not torn.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from planner.records import read_records

ROOT = Path(__file__).resolve().parents[3]
# Long lines: one that is being written would look torn to who does not wait.
APPEND = """
import sys
from planner.domain.run_record import RunRecord
from planner.records import append_jsonl
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
machine = {"machine": "m", "os": "o", "python": "3", "cpu": "c", "host_memory_bytes": 1}
environment = {**machine, "variables": {str(number): "x" * 1000 for number in range(int(sys.argv[4]))}}
for number in range(count):
    record = RunRecord(
        id=f"{name}-{number}", source="s", source_group="g", model="m", gpu="cpu", method="lora", seq_len=8,
        outcome="ok",
    )
    append_jsonl(path, record, {"environment": environment})
"""


def appending(path: Path, name: str, count: int, kilobytes: int) -> subprocess.Popen[str]:
    """A process that appends ``count`` records."""
    call = [sys.executable, "-c", APPEND, str(path), name, str(count), str(kilobytes)]
    return subprocess.Popen(call, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def test_records_of_several_processes_are_all_whole(tmp_path: Path) -> None:
    """Four writers with fifty lines each: two hundred records and no torn line."""
    path = tmp_path / "x.jsonl"
    for process in [appending(path, name, 50, 20) for name in "abcd"]:
        _, said = process.communicate()
        assert process.returncode == 0, said
    records = read_records([path])
    assert {record.id for record in records.records} == {
        f"{name}-{number}" for name in "abcd" for number in range(50)
    }
    assert records.quarantined == ()
    assert not (tmp_path / "x.jsonl.torn").exists()


def test_a_writer_that_is_killed_stops_nobody(tmp_path: Path) -> None:
    """What it had begun is set aside by the next; all lines of the other are there."""
    path = tmp_path / "x.jsonl"
    killed, other = appending(path, "a", 10_000, 300), appending(path, "b", 20, 1)
    while killed.poll() is None and (not path.exists() or path.stat().st_size < 2_000_000):
        time.sleep(0.01)
    killed.kill()
    _, said = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said
    _, said = other.communicate()
    assert other.returncode == 0, said
    records = read_records([path])
    assert {f"b-{number}" for number in range(20)} <= {record.id for record in records.records}
    assert {line.rule for line in records.quarantined} <= {"unfinished"}
