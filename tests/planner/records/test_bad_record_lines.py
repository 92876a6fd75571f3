"""Lines of a folder of records that are no records: counted, left out and left as they are,
wherever they stand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from measure.cli.main import main
from measure.run.assemble import MeasuredRecord
from measure.run.store import Store, left_out_text
from planner.domain.run_record import RunRecord
from planner.errors import InputFileError
from planner.records import append_jsonl, read_records

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
