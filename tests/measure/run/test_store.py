"""Where records go when the disk, the folder or a file there is not as it should be: one sentence,
nothing half-written.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from measure.cli.main import main
from measure.run.assemble import MeasuredRecord
from measure.run.cases.case import RunOptions
from measure.run.readings.environment import collect_environment
from measure.run.readings.machine import Machine
from measure.run.single import prepare
from measure.run.store import Store
from planner.domain.run_record import RunRecord
from planner.errors import InputFileError, UsageError
from planner.records import read_records
from tests.extras import needs

ROOT = Path(__file__).resolve().parents[3]
RUN = ["run", "--model", "qwen2.5-0.5b", "--method", "lora", "--seq", "64", "--gpu", "cpu"]

needs_psutil = needs("psutil")
needs_libraries = needs("torch", "transformers", "peft", "accelerate")


def measured(number: int, history: bytes | None = None) -> MeasuredRecord:
    """A record with its environment."""
    record = RunRecord(
        id=f"run-{number}",
        source="s",
        source_group="g",
        model="qwen2.5-0.5b",
        gpu="cpu",
        method="lora",
        seq_len=8,
        outcome="ok",
    )
    return MeasuredRecord(
        record, {"environment": collect_environment(None, ()), "raw": {}} if history else _plain(), history
    )


def _plain() -> dict[str, Any]:
    return {"environment": collect_environment(None, ())}


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file of this process may grow beyond 4096 bytes: the write that would cross it fails,
    as on a full disk.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield 4096
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@needs_psutil
def test_a_disk_that_fills_up_keeps_every_whole_record(tmp_path: Path, small_files: int) -> None:
    """The record that does not fit is refused in a sentence; all before it stay readable,
    and so does the file.
    """
    store = Store(tmp_path)
    line_bytes = store.add(measured(0)).stat().st_size
    fitting = small_files // line_bytes
    assert fitting > 1
    path = [store.add(measured(number)) for number in range(1, fitting)][-1]
    with pytest.raises(InputFileError, match="cannot be written: File too large"):
        store.add(measured(fitting))
    kept = read_records([path])
    assert [record.id for record in kept.records] == [f"run-{number}" for number in range(fitting)]
    assert kept.quarantined == ()


@needs_psutil
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_device_is_named(tmp_path: Path) -> None:
    """What the system says about a full disk is in the sentence."""
    store = Store(tmp_path)
    name = store.add(measured(1)).name
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(InputFileError, match=r"No space left on device|not a regular file"):
        store.add(measured(2))


def test_a_disk_that_is_nearly_full_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than what a few records take is left: nothing is measured for nothing."""
    monkeypatch.setattr(
        "measure.run.store.shutil.disk_usage", lambda _path: type("Usage", (), {"free": 1000})()
    )
    with pytest.raises(UsageError, match="is full: 1000 B"):
        Store(tmp_path).prepare()


@needs_psutil
def test_a_history_on_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up in the middle leaves neither a piece of the history nor a record that names it."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"history of 'run-1' cannot be written: .*No space left on device"):
        Store(tmp_path).add(measured(1, b"history"))
    assert [path.name for path in tmp_path.rglob("*")] == ["histories"]


@needs_psutil
def test_a_history_that_cannot_be_written_leaves_no_record(tmp_path: Path) -> None:
    """A record names its history, so the history comes first; a file stands where its folder should be."""
    (tmp_path / "histories").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="history of 'run-1' cannot be written"):
        Store(tmp_path).add(measured(1, b"history"))
    assert [path.name for path in tmp_path.iterdir()] == ["histories"]


@needs_libraries
def test_a_folder_that_cannot_be_written_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in the place of the folder: exit code 2 and one sentence, before the run."""
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    assert main([*RUN, "--out", str(blocked / "records")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "cannot be written" in err
    assert "give another --out" in err


@needs_libraries
def test_records_of_a_newer_schema_stop_a_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be read cannot be skipped either: nothing runs, and the file stays as it is."""
    newer = tmp_path / "cpu.jsonl"
    newer.write_text('{"schema": "planner/record@99"}\n', encoding="utf-8")
    campaign = ROOT / "data" / "campaigns" / "cpu.toml"
    assert main(["campaign", str(campaign), "--out", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "newer planner" in err
    assert newer.read_text(encoding="utf-8") == '{"schema": "planner/record@99"}\n'


@needs_psutil
@pytest.mark.parametrize(
    ("said", "library", "cure"),
    [
        ({"method": "qlora"}, "bitsandbytes", "measure extra"),
        ({"method": "full", "optimizer": "adamw_8bit"}, "bitsandbytes", "measure extra"),
        (
            {"method": "full", "sharding": "zero2", "gpus": 2, "optimizer": "adamw_torch"},
            "deepspeed",
            "measure extra",
        ),
        ({"method": "lora", "attention": "flash2"}, "flash_attn", "pip install flash-attn"),
    ],
)
def test_a_library_that_a_job_needs_is_named(
    said: dict[str, Any], library: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library, and how to get it or do without; looked for without importing it."""
    monkeypatch.setattr("measure.run.single.find_spec", lambda _name: None)
    here = Machine(None, (), None, collect_environment(None, ()))
    job = {"model": "qwen2.5-0.5b", "seq": 64, "gpu": "cpu", **said}
    with pytest.raises(UsageError, match=f"{library} is not installed and this job needs it; .*{cure}"):
        prepare(job, RunOptions(workload="loop"), here, force=True)


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    """Output into a closed pipe ends without a Python traceback."""
    command = (
        f"{sys.executable} -m measure campaign data/campaigns/first.toml --dry-run --out "
        f"{tmp_path} | head -c 10"
    )
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
