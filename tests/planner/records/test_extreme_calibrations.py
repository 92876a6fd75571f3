"""Calibration files whose numbers are as extreme as the schema lets them be, and beyond."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from planner.catalog.location import data_dir
from planner.cli.main import main
from planner.domain.uncertainty.coefficients import PRIORS
from planner.domain.uncertainty.hierarchy import FREEDOM, moved
from planner.errors import InputFileError
from planner.records.calibration_file import MAX_OFFSET, read_document
from planner.records.previous_calibration import read_previous

JOB = ["--model", "7b", "--method", "qlora", "--gpu", "4090", "--seq", "1024"]


def shipped() -> dict[str, Any]:
    """The content of the calibration that ships."""
    content: dict[str, Any] = json.loads(
        (data_dir() / "calibration" / "default.json").read_text(encoding="utf-8")
    )
    return content


def written(folder: Path, content: dict[str, Any], name: str = "mine") -> Path:
    """A calibration file of this content."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content | {"name": name}), encoding="utf-8")
    return path


@pytest.mark.parametrize("sign", [-1, 1])
def test_extremes_of_every_number_give_a_finite_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sign: int
) -> None:
    """Offsets, scores and scales at their bounds: one answer and a search end with a verdict,
    and no number is infinite.
    """
    content = shipped()
    for each in content["offsets"]:
        each.update(offset=sign * MAX_OFFSET, spread=MAX_OFFSET)
    for each in content["spreads"]:
        each["scores"] = [sign * 100.0] * len(each["scores"])
    content["scale"] = dict.fromkeys(content["scale"], 1000.0)
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
        (("scale", "fixed_bytes"), 1e30),
        (("n_rows",), 10**200),
        (("groups",), ["g"] * 20_000),
        (("machine",), "m" * 5_000),
    ],
)
def test_what_nothing_physical_has_is_refused_by_name(
    tmp_path: Path, place: tuple[Any, ...], value: object
) -> None:
    """The sentence names the key."""
    content: Any = shipped()
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(
        InputFileError, match=rf"mine\.json: no calibration file: key '{'.'.join(map(str, place))}"
    ):
        read_document(written(tmp_path, content))


@pytest.mark.parametrize("prior", [5e-324, 1e308, -1e308])
def test_extreme_priors_of_a_previous_calibration_are_read(tmp_path: Path, prior: float) -> None:
    """They only move a coefficient to one of its bounds."""
    content = shipped() | {"priors": {each.name: prior for each in PRIORS}, "formulas": "0-old"}
    written(tmp_path, content, "previous")
    found = read_previous(tmp_path)
    assert found is not None
    assert all(math.isfinite(each.offset) for each in found.offsets)


def test_an_extreme_offset_ends_at_a_bound() -> None:
    """However far a coefficient is moved, it stays inside its bounds, and small moves are exact."""
    for prior in (each for each in PRIORS if each.name in FREEDOM):
        assert moved(prior.name, 1e6) == prior.high
        assert moved(prior.name, -1e6) == prior.low
        assert moved(prior.name, 0.0) == prior.value
