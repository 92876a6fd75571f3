"""Calibration files: what is written is read again;
what is malformed or of other formulas is refused with what to do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.calibration.fit.calibrate import EARNED
from planner.cli.main import main
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import InputFileError, UnknownNameError
from planner.records.calibration_file import (
    MAX_OFFSET,
    find_calibration,
    read_calibration,
    read_document,
    write_calibration,
)
from tests.planner.calibration.simulated import MACHINES, simulated
from tests.planner.records.made import SHIPPED, content_of_shipped, shipped, write_csv, written

ROOT = Path(__file__).resolve().parents[3]
WRITE = """
import sys
from pathlib import Path
from planner.records.calibration_file import read_document, write_document
document = read_document(Path(sys.argv[1])).model_copy(update={"name": "mine", "machine": sys.argv[2]})
for _ in range(50):
    write_document(document, Path(sys.argv[3]))
"""
JOB = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024"]

Captured = pytest.CaptureFixture[str]


def changed(folder: Path, **values: object) -> Path:
    """A copy of the shipped file with other values."""
    path = folder / "changed.json"
    path.write_text(json.dumps(content_of_shipped() | values), encoding="utf-8")
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """A file holds the whole calibration."""
    assert read_calibration(write_calibration(shipped(), tmp_path)) == shipped()


def test_the_shipped_file_is_small_and_of_these_formulas() -> None:
    """It loads with the formulas as they are, has the numbers of the fit, and stays far below a megabyte."""
    calibration = shipped()
    assert {each.knob.label for each in calibration.offsets} == EARNED
    assert SHIPPED.stat().st_size < 100_000
    assert {"memory", "need", "time"} <= {spread.key.of for spread in calibration.spreads}


def test_other_formulas_are_refused_with_the_command(tmp_path: Path) -> None:
    """Offsets from other priors mean something else."""
    with pytest.raises(InputFileError, match=r"fitted with formulas 0-old.*plan calibrate RECORDS... --out"):
        read_calibration(changed(tmp_path, formulas="0-old"))


def test_a_file_with_chosen_weights_of_an_interval_is_refused_for_its_formulas(tmp_path: Path) -> None:
    """Up to formulas 9 a fit chose them; the command that makes it anew is named."""
    with pytest.raises(InputFileError, match=r"fitted with formulas 9-.*plan calibrate RECORDS... --out"):
        read_calibration(changed(tmp_path, formulas="9-4f6a38a020a9", scale={"counted": 0.6}))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"schema": "planner/calibration@2"}, "schema"),
        ({"surprise": 1}, "surprise"),
        ({"name": "../up"}, "name"),
        (
            {
                "offsets": [
                    {
                        "knob": {"coefficient": "magic", "level": "all", "key": ""},
                        "offset": 1.0,
                        "spread": 1.0,
                    }
                ]
            },
            "magic",
        ),
        (
            {
                "offsets": [
                    {
                        "knob": {"coefficient": "launch_s", "level": "all", "key": ""},
                        "offset": "NaN",
                        "spread": 1.0,
                    }
                ]
            },
            "offset",
        ),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, values: dict[str, object], says: str) -> None:
    """One sentence that names the file and the place."""
    with pytest.raises(InputFileError, match=says):
        read_calibration(changed(tmp_path, **values))


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are looked up among one's own and the shipped ones only."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UnknownNameError, match="default"):
        find_calibration("defualt", SHIPPED.parent)


def test_a_machine_of_ones_own_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """`plan calibrate mine.csv --name my-lab` writes it, `plan` uses it for that GPU,
    and the prediction changes.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    slow = Coefficients(matmul_efficiency_half_rate=0.5, memory_efficiency=0.5)
    write_csv(tmp_path / "mine.csv", simulated({"doc-d": slow})[:6])
    assert main(["calibrate", str(tmp_path / "mine.csv"), "--name", "my-lab"]) == 0
    out = capsys.readouterr().out
    assert "numbers of 'my-lab', on top of" in out
    assert "uses it by itself for rtx4090 under hf-trainer@5, or with --calibration my-lab" in " ".join(
        out.split()
    )
    steps = []
    for asked, name in ((("--calibration", "default"), "default"), ((), "my-lab")):
        assert main([*JOB, *asked, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["calibration"] == name
        steps.append(document["time"]["step_s"])
    assert steps[1] > 1.2 * steps[0]


def test_calibrating_everybody_says_what_was_fitted(tmp_path: Path, capsys: Captured) -> None:
    """`plan calibrate FILE --out FOLDER` writes default.json and lists numbers,
    coverage and what was left out by its rule.
    """
    records = simulated(dict.fromkeys(MACHINES, Coefficients()))
    write_csv(tmp_path / "all.csv", records)
    assert main(["calibrate", str(tmp_path / "all.csv"), "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "free numbers" in out
    assert "inside the 90 % interval" in out
    assert read_calibration(tmp_path / "default.json").n_rows == len(records)


def test_neither_name_nor_folder_is_refused(capsys: Captured) -> None:
    """Nothing is written to a place that nobody named."""
    assert main(["calibrate", "x.csv"]) == 2
    assert "--out FOLDER, or --name NAME" in capsys.readouterr().err


def test_two_writers_of_one_name(tmp_path: Path) -> None:
    """Fifty times each, read all the while; no piece of a file is left beside it."""
    path = tmp_path / "mine.json"
    calls = [[sys.executable, "-c", WRITE, str(SHIPPED), name, str(tmp_path)] for name in "ab"]
    writers = [subprocess.Popen(call, cwd=ROOT, stderr=subprocess.PIPE, text=True) for call in calls]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(read_document(path).machine)
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {"a", "b"}
    assert [each.name for each in tmp_path.iterdir()] == ["mine.json"]


@pytest.mark.parametrize("sign", [-1, 1])
def test_extremes_of_every_number_give_a_finite_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sign: int
) -> None:
    """Offsets and scores at their bounds: one answer and a search end with a verdict,
    and no number is infinite.
    """
    content = content_of_shipped()
    for each in content["offsets"]:
        each.update(offset=sign * MAX_OFFSET, spread=MAX_OFFSET)
    for each in content["spreads"]:
        each["scores"] = [sign * 100.0] * len(each["scores"])
    path = written(tmp_path, content)
    for command in (JOB, ["search", "--model", "7b", "--gpu", "4090", "--seq", "1024"]):
        assert main([*command, "--calibration", str(path), "--json"]) != 1
        json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("offsets", 0, "offset"), 1e300),
        (("offsets", 0, "spread"), -1.0),
        (("spreads", 0, "scores", 0), -1e9),
        (("n_rows",), 10**200),
        (("groups",), ["g"] * 20_000),
        (("machine",), "m" * 5_000),
    ],
)
def test_what_nothing_physical_has_is_refused_by_name(
    tmp_path: Path, place: tuple[Any, ...], value: object
) -> None:
    """The sentence names the key."""
    content: Any = content_of_shipped()
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(
        InputFileError, match=rf"mine\.json: no calibration file: key '{'.'.join(map(str, place))}"
    ):
        read_document(written(tmp_path, content))
