"""Calibration files: what is written is read again;
what is malformed or of other formulas is refused with what to do.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog.location import data_dir
from planner.cli.main import main
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import InputFileError, UnknownNameError
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.records import write_csv
from planner.records.calibration_file import find_calibration, read_calibration, write_calibration
from planner.records.previous_calibration import keep_previous, read_previous
from tests.planner.calibration.simulated import MACHINES, simulated

SHIPPED = data_dir() / "calibration" / "default.json"
JOB = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024"]

Captured = pytest.CaptureFixture[str]


def shipped() -> Calibration:
    """The calibration of the package."""
    return read_calibration(SHIPPED)


def changed(folder: Path, **values: object) -> Path:
    """A copy of the shipped file with other values."""
    path = folder / "changed.json"
    path.write_text(json.dumps(json.loads(SHIPPED.read_text(encoding="utf-8")) | values), encoding="utf-8")
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """A file holds the whole calibration."""
    assert read_calibration(write_calibration(shipped(), tmp_path)) == shipped()


def test_the_shipped_file_is_small_and_of_these_formulas() -> None:
    """It loads with the formulas as they are, has at most 24 free numbers, and stays far below a megabyte."""
    calibration = shipped()
    assert 0 < len(calibration.offsets) <= 25
    assert SHIPPED.stat().st_size < 100_000
    assert {"memory", "need", "time"} <= {spread.key.of for spread in calibration.spreads}


def test_other_formulas_are_refused_with_the_command(tmp_path: Path) -> None:
    """Offsets from other priors mean something else."""
    with pytest.raises(InputFileError, match=r"fitted with formulas 0-old.*plan calibrate RECORDS... --out"):
        read_calibration(changed(tmp_path, formulas="0-old"))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"schema": "planner/calibration@2"}, "schema"),
        ({"surprise": 1}, "surprise"),
        ({"name": "../up"}, "name"),
        ({"scale": None}, "scale"),
        (
            {
                "scale": {
                    "counted": 0.0,
                    "unknown_lengths": 5.0,
                    "order": 6.0,
                    "fixed_bytes": 1.0,
                    "machine": 1.0,
                }
            },
            "scale.counted",
        ),
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
    assert "free numbers (at most 24)" in out
    assert "inside the 90 % interval" in out
    assert read_calibration(tmp_path / "default.json").n_rows == len(records)


def test_what_a_new_calibration_replaces_is_kept(tmp_path: Path) -> None:
    """The file before becomes previous.json under that name; the same numbers again leave it as it is."""
    assert keep_previous(shipped(), tmp_path) is None
    write_calibration(shipped(), tmp_path)
    assert keep_previous(replace(shipped(), date="2030-01-01"), tmp_path) is None
    first = shipped().offsets[0]
    other = replace(shipped(), offsets=(replace(first, offset=first.offset + 0.1), *shipped().offsets[1:]))
    kept = keep_previous(other, tmp_path)
    assert kept == tmp_path / "previous.json"
    assert read_previous(tmp_path) == replace(shipped(), name="previous")


def test_a_previous_one_of_other_priors_keeps_its_values(tmp_path: Path) -> None:
    """A prior that moved since is made up for, so that the coefficients are those of then;
    without its priors it is refused.
    """
    scenario = resolve(from_flags({"model": "7b", "method": "qlora", "gpu": "4090", "seq": 1024}))
    path = write_calibration(replace(shipped(), name="previous"), tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["formulas"] = "0-old"
    content["priors"]["launch_s"] *= 1.5
    content["priors"]["gone"] = 1.0
    path.write_text(json.dumps(content), encoding="utf-8")
    then = read_previous(tmp_path)
    assert then is not None
    before, now = then.coefficients_for(scenario).launch_s, shipped().coefficients_for(scenario).launch_s
    assert before == pytest.approx(1.5 * now)
    path.write_text(json.dumps(content | {"priors": {}}), encoding="utf-8")
    with pytest.raises(InputFileError, match="which priors"):
        read_previous(tmp_path)


def test_neither_name_nor_folder_is_refused(capsys: Captured) -> None:
    """Nothing is written to a place that nobody named."""
    assert main(["calibrate", "x.csv"]) == 2
    assert "--out FOLDER, or --name NAME" in capsys.readouterr().err
