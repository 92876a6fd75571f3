"""``plan calibrate`` from the command line: the template, what is told about a file,
and the calibration of a machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.main import main
from planner.records import read_records
from planner.records.parsing import MAX_TOLD
from tests.files import written

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def template(capsys: Captured) -> str:
    """The text of ``plan calibrate --template``."""
    assert main(["calibrate", "--template"]) == 0
    return capsys.readouterr().out


def filled(template: str) -> str:
    """The template with its two examples as rows."""
    return template.replace("# run-", "run-")


def refused(capsys: Captured, *arguments: str) -> str:
    """The one sentence with which exit code 2 is explained."""
    assert main(["calibrate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_the_template_is_refused_until_a_row_is_filled_in(
    capsys: Captured, tmp_path: Path, template: str
) -> None:
    """The examples are comments; with them as rows a calibration is written."""
    path, folder = tmp_path / "mine.csv", tmp_path / "own"
    path.write_text(template, encoding="utf-8")
    assert f"{path}: no rows" in refused(capsys, str(path), "--name", "my-lab", "--out", str(folder))
    path.write_text(filled(template), encoding="utf-8")
    assert [record.id for record in read_records([path]).records] == ["run-1", "run-2"]
    assert main(["calibrate", str(path), "--name", "my-lab", "--out", str(folder)]) == 0
    assert "written to" in capsys.readouterr().out
    assert [each.name for each in folder.iterdir()] == ["my-lab.json"]


def test_all_that_is_wrong_with_a_file_is_told_at_once(
    capsys: Captured, tmp_path: Path, template: str
) -> None:
    """Every column of every row, at most ten, and how many more; nothing is fitted on the rest."""
    path = tmp_path / "mine.csv"
    wrong = filled(template).replace("qlora,ok,1024,1,16", "magic,fine,0,lots,x")
    path.write_text(wrong, encoding="utf-8")
    message = refused(capsys, str(path), "--name", "my-lab")
    assert all(
        f"column '{name}'" in message
        for name in ("method", "outcome", "seq_len", "micro_batch", "grad_accum")
    )
    header = next(line for line in template.splitlines() if line.startswith("id,"))
    path.write_text(f"{header}\n" + f"{',' * header.count(',')}\n" * 3, encoding="utf-8")
    message = refused(capsys, str(path), "--name", "my-lab")
    assert message.count("is missing or blank") == MAX_TOLD
    assert message.rstrip().endswith("; and 11 more")


def test_a_file_needs_only_the_columns_that_a_record_needs(capsys: Captured, tmp_path: Path) -> None:
    """A blank or absent column is what the stack does by default."""
    path = written(
        tmp_path,
        "id,source,source_group,model,gpu,method,outcome,seq_len,peak_memory_mib\n"
        "a,lab,lab,llama-2-7b,rtx4090,qlora,ok,1024,7100\n",
        "mine.csv",
    )
    assert main(["calibrate", str(path), "--name", "my-lab", "--out", str(tmp_path / "own")]) == 0
    assert "my-lab" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [(), ("--name", "x"), ("mine.csv", "--template"), ("mine.csv",)])
def test_what_is_not_said_is_asked_for(capsys: Captured, arguments: tuple[str, ...]) -> None:
    """No file, a file beside --template, or no place for the calibration."""
    assert refused(capsys, *arguments).startswith("plan: ")
