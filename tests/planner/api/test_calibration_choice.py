"""Which calibration answers a job: a personal one where the job would run on its machine,
else the one that ships.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from planner.catalog.location import data_dir
from planner.cli.main import main
from planner.domain.uncertainty.calibration import Environment
from planner.records.calibration_file import personal_dir, read_calibration, write_calibration

JOB = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024"]
HERE = Environment("rtx4090", ("hf-trainer@5",), drivers=("570",))

Captured = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Answer:
    """What one prediction said of its calibration."""

    calibration: str
    warnings: tuple[str, ...]
    assumption: dict[str, str] | None


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def keep(name: str, environment: Environment | None = HERE) -> Path:
    """A personal calibration of that name, with the numbers of the one that ships."""
    shipped = read_calibration(data_dir() / "calibration" / "default.json")
    return write_calibration(
        replace(shipped, name=name, machine=name, environment=environment), personal_dir()
    )


def ask(capsys: Captured, *more: str) -> Answer:
    """The answer to :data:`JOB` with ``more`` flags."""
    main([*JOB, *more, "--json"])
    document = json.loads(capsys.readouterr().out)
    said = [each for each in document["assumptions"] if each["name"] == "calibration"]
    return Answer(document["calibration"], tuple(document["warnings"]), said[0] if said else None)


def test_the_machine_of_the_job_is_found_by_itself(capsys: Captured) -> None:
    """GPU and stack match one personal calibration: it is used,
    and the assumptions say so with what it was measured on.
    """
    keep("my-lab")
    answer = ask(capsys)
    assert answer.calibration == "my-lab"
    assert answer.assumption is not None
    assert answer.assumption["origin"] == "personal"
    assert "measured on rtx4090, hf-trainer@5, driver 570" in answer.assumption["note"]
    assert main(JOB) == 0
    assert "Calibration: my-lab. More:" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["default", "none"])
def test_what_is_asked_for_wins(capsys: Captured, name: str) -> None:
    """``--calibration default`` and ``none`` leave the personal one out."""
    keep("my-lab")
    answer = ask(capsys, "--calibration", name)
    assert answer.calibration == {"default": "default", "none": "uncalibrated"}[name]
    assert answer.assumption is not None
    assert (answer.assumption["value"], answer.assumption["origin"]) == (name, "cli")


@pytest.mark.parametrize(
    "environment",
    [
        Environment("rtx3090", ("hf-trainer@5",)),
        Environment("rtx4090", ("hf-trainer@4.36",)),
        None,
    ],
)
def test_another_machine_is_not_used(capsys: Captured, environment: Environment | None) -> None:
    """Another GPU, another stack, or a file that does not say where it was measured."""
    keep("my-lab", environment)
    assert ask(capsys) == Answer("default", (), None)


def test_a_named_host_must_be_that_of_the_records(capsys: Captured) -> None:
    """``--host`` narrows the choice; without it the host of the records is no hindrance."""
    keep("my-lab", replace(HERE, host="server-256g"))
    assert ask(capsys).calibration == "my-lab"
    assert ask(capsys, "--host", "server-256g").calibration == "my-lab"
    assert ask(capsys, "--host", "xeon-8352v-24vcpu-180g").calibration == "default"


def test_two_matches_are_named_and_neither_is_used(capsys: Captured) -> None:
    """Nobody can say which is meant, so the one that ships answers, with a warning that names both."""
    keep("first"), keep("second")
    answer = ask(capsys)
    assert answer.calibration == "default"
    assert "2 personal calibrations match this job (first, second)" in answer.warnings[-1]
    assert ask(capsys, "--calibration", "second").calibration == "second"


@pytest.mark.parametrize("damage", ["formulas", "text"])
def test_a_match_that_cannot_be_used_is_said(capsys: Captured, damage: str) -> None:
    """Older formulas, or no calibration at all: the one that ships answers,
    and a warning names the file and the way out.
    """
    path = keep("my-lab")
    if damage == "formulas":
        path.write_text(
            json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"formulas": "0-old"}), encoding="utf-8"
        )
    else:
        path.write_text("{", encoding="utf-8")
    answer = ask(capsys)
    assert answer.calibration == "default"
    says = "fit again: plan calibrate RECORDS... --name my-lab" if damage == "formulas" else "not valid JSON"
    assert f"a personal calibration is left out: {path}:" in answer.warnings[-1]
    assert says in answer.warnings[-1]
    assert "--out" not in answer.warnings[-1]


@pytest.mark.parametrize("name", ["default", "none", "../up", ""])
def test_a_name_that_means_something_else_is_refused(capsys: Captured, name: str, tmp_path: Path) -> None:
    """A personal calibration cannot hide the one that ships, nor leave its folder."""
    records = data_dir() / "published" / "003_f83f083c0d8bebd6.csv"
    assert main(["calibrate", str(records), "--name", name]) == 2
    assert "--name" in capsys.readouterr().err
    assert list(tmp_path.rglob("*.json")) == []
