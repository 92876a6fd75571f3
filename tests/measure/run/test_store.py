"""Where records go when the disk, the folder or a file there is not as it should be: one sentence,
nothing half-written.
"""

from __future__ import annotations

import errno
import json
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
from measure.run.store import Store, left_out_text
from planner.domain.run_record import RunRecord
from planner.errors import InputFileError, UsageError
from planner.records import append_jsonl, read_records
from tests.extras import needs

ROOT = Path(__file__).resolve().parents[3]
RUN = ["run", "--model", "qwen2.5-0.5b", "--method", "lora", "--seq", "64", "--gpu", "cpu"]

ENVIRONMENT = {"machine": "abc", "os": "o", "python": "3", "cpu": "c", "host_memory_bytes": 1}
BAD = [
    b"\0" * 5000,
    b"not JSON",
    b"\xff\xfe",
    b'{"schema": "planner/record@1", "id": "half',
    b"[]",
    b"{}",
    b"[" * 100_000,
]

needs_psutil = needs("psutil")
needs_libraries = needs("torch", "transformers", "peft", "accelerate")


def record(number: int) -> RunRecord:
    """A record of this number."""
    return RunRecord(
        id=f"run-{number}",
        source="s",
        source_group="g",
        model="m",
        gpu="cpu",
        method="lora",
        seq_len=8,
        outcome="ok",
    )


def measured(number: int, history: bytes | None = None) -> MeasuredRecord:
    """A record with its environment."""
    return MeasuredRecord(
        record(number),
        {"environment": collect_environment(None, ()), "raw": {}} if history else _plain(),
        history,
    )


def _plain() -> dict[str, Any]:
    return {"environment": collect_environment(None, ())}


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file of this process may grow beyond 6144 bytes: the write that would cross it fails,
    as on a full disk.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6144, before[1]))
    yield 6144
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


def file_with(folder: Path, *middle: bytes) -> Path:
    """Two records, and lines between them."""
    path = folder / "cpu-abc-2026-01-01.jsonl"
    append_jsonl(path, record(1), {"environment": ENVIRONMENT})
    with path.open("ab") as stream:
        stream.writelines(line + b"\n" for line in middle)
    # Not by append_jsonl, which would set the last of them aside as torn.
    with (folder / "last").open("wb"):
        append_jsonl(folder / "last", record(2), {"environment": ENVIRONMENT})
    with path.open("ab") as stream:
        stream.write((folder / "last").read_bytes())
    (folder / "last").unlink()
    return path


@pytest.mark.parametrize("bad", BAD, ids=lambda line: repr(line[:12]))
def test_a_bad_line_in_the_middle_is_left_out(bad: bytes, tmp_path: Path) -> None:
    """The records around it are read, its place is told, and no byte of the file changes."""
    path = file_with(tmp_path, bad)
    before = path.read_bytes()
    records = Store(tmp_path).read()
    assert records is not None
    assert [each.id for each in records.records] == ["run-1", "run-2"]
    said = left_out_text(records)
    assert said is not None
    assert said.startswith(
        f"1 line of the records is no record and is left out; its file stays as it is: {path}:2: "
    )
    assert said.isprintable()
    assert path.read_bytes() == before
    Store(tmp_path).add(MeasuredRecord(record(3), {"environment": ENVIRONMENT}))
    assert path.read_bytes().startswith(before)


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    """A copied line, all bad ones, and a torn one at the end;
    an empty file and one of blanks beside them are none.
    """
    path = file_with(tmp_path, *BAD)
    path.write_bytes(path.read_bytes() + path.read_bytes().split(b"\n")[0] + b'\n{"schema": "pl')
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "blank.jsonl").write_bytes(b"\n \n")
    records = Store(tmp_path).read()
    assert records is not None
    assert len(records.records) == 2
    said = left_out_text(records)
    assert said is not None
    assert said.startswith(f"{len(BAD) + 2} lines of the records are no records and are left out")


def test_a_folder_of_bad_lines_alone_is_one_without_records(tmp_path: Path) -> None:
    """Nothing is recorded, so everything is left to be measured."""
    (tmp_path / "x.jsonl").write_bytes(b"rubbish\nmore\n")
    records = Store(tmp_path).read()
    assert records is not None
    assert (len(records.records), len(records.quarantined)) == (0, 2)


def test_a_newer_line_ends_the_reading(tmp_path: Path) -> None:
    """A newer version has recorded a case there: it would be measured again."""
    path = file_with(tmp_path, b'{"schema": "planner/record@99"}')
    with pytest.raises(InputFileError, match=rf"{path}:2: .*newer planner"):
        Store(tmp_path).read()


def test_others_keep_their_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading is strict unless lines may be left out;
    ``measure check`` names each line that it leaves out.
    """
    path = file_with(tmp_path, b"rubbish")
    with pytest.raises(InputFileError, match=rf"{path}:2"):
        read_records([path])
    assert main(["check", str(path)]) == 0
    assert f"left out: {path}:2: not valid JSON" in capsys.readouterr().out
    assert main(["check", str(path), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (len(found["records"]), len(found["other_lines_left_out"]), found["unfinished_lines"]) == (
        2,
        1,
        [],
    )
