"""Bad records at the command line: each line that is left out is named with its rule,
and what remains is used.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.coefficients import Coefficients
from planner.records import RECORD_SCHEMA_ID
from tests.files import written
from tests.planner.calibration.simulated import simulated

RECORDS = simulated({"doc-d": Coefficients()})[:4]
NEWER = "planner/record@2"

Captured = pytest.CaptureFixture[str]


def write(folder: Path, *lines: tuple[str, RunRecord]) -> str:
    """A record file of (schema, record) lines."""
    path = written(
        folder,
        "".join(json.dumps({"schema": schema, **asdict(each)}) + "\n" for schema, each in lines),
        "m.jsonl",
    )
    return path.name


def as_now(*records: RunRecord) -> list[tuple[str, RunRecord]]:
    """Lines of the schema as it is."""
    return [(RECORD_SCHEMA_ID, each) for each in records]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # A short path, so that the cells of a table are not folded.
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_lines_that_cannot_be_read_are_left_out_one_by_one(
    capsys: Captured, tmp_path: Path, command: str
) -> None:
    """A newer schema, an id that was there and a line that a crash cut short: named with place and rule,
    the rest is used.
    """
    path = write(tmp_path, *as_now(RECORDS[0]), (NEWER, RECORDS[1]), *as_now(RECORDS[0], RECORDS[2]))
    with Path(path).open("a", encoding="utf-8") as stream:
        stream.write('{"schema": "planner/rec')
    assert main([command, path, *(["--name", "my-lab"] if command == "calibrate" else [])]) == 0
    out = capsys.readouterr().out
    wanted = {2: f"the schema '{NEWER}' is newer", 3: "is already that", 5: "not a complete line"}
    for line, says in wanted.items():
        assert any(f"{path}:{line}" in text and says in text for text in out.splitlines())
    if command == "calibrate":
        assert "newer_schema 1, repeated_id 1, unfinished 1" in out
    else:
        assert "\n2 rows from 1 source" in out


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_nothing_but_newer_lines_is_a_usage_error(capsys: Captured, tmp_path: Path, command: str) -> None:
    """Exit code 2, with each line's reason."""
    path = write(tmp_path, (NEWER, RECORDS[0]), (NEWER, RECORDS[1]))
    assert main([command, path, *(["--name", "my-lab"] if command == "calibrate" else [])]) == 2
    assert f"{path}: no record is left: line 1: the schema '{NEWER}' is newer than" in capsys.readouterr().err


def test_rows_with_something_wrong_are_named_by_rule(capsys: Captured, tmp_path: Path) -> None:
    """A peak above the card, a peak below the weights, a copy, a CPU run,
    another card and an impossible time, in one file.
    """
    good, other = RECORDS[:3], RECORDS[3]
    bad = {
        "above_card": replace(other, id="above_card", peak_memory_mib=61_440.0),
        "below_weights": replace(other, id="below_weights", peak_memory_mib=6.9),
        "duplicate": replace(good[0], id="duplicate"),
        "cpu_record": replace(other, id="cpu_record", gpu="cpu"),
        "other_machine": replace(other, id="other_machine", gpu="a100-80-sxm"),
        "impossible_rate": replace(other, id="impossible_rate", step_time_s=0.001),
    }
    path = write(tmp_path, *as_now(*good, *bad.values()))
    assert main(["calibrate", path, "--name", "my-lab"]) == 0
    left_out = capsys.readouterr().out.partition("Left out of the fit\n")[2].splitlines()
    rules = {
        tuple(line.split()[:2])
        for line in left_out
        if len(line.split()) > 1 and {*line.split()[:2]} <= {*bad}
    }
    assert rules == {(rule, rule) for rule in bad}
    assert main(["validate", path]) == 0
    out = capsys.readouterr().out
    doubtful = out.partition("Doubtful rows, scored all the same\n")[2]
    assert {
        line.split()[1] for line in doubtful.splitlines() if line.split()[:1] and line.split()[0] in bad
    } == {
        "below_weights",
        "duplicate",
        "impossible_rate",
    }
    assert "above_card" in out.partition("Not scored")[2]
    assert main(["validate", path, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["doubtful"]) == 3


def test_a_fit_without_any_usable_record_is_refused(capsys: Captured, tmp_path: Path) -> None:
    """Nothing is written; the message counts the rules."""
    path = write(tmp_path, *as_now(*(replace(each, gpu="cpu") for each in RECORDS)))
    assert main(["calibrate", path, "--out", str(tmp_path / "out")]) == 2
    assert "no record can be used to calibrate: cpu_record 4 (" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
