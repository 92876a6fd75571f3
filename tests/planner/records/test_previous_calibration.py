"""The calibration that a new one replaced: kept, and read under priors that moved since."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.uncertainty.coefficients import PRIORS
from planner.errors import InputFileError
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.records.calibration_file import (
    write_calibration,
)
from planner.records.previous_calibration import keep_previous, read_previous
from tests.planner.records.made import content_of_shipped, shipped, written


@pytest.mark.parametrize("prior", [5e-324, 1e308, -1e308])
def test_extreme_priors_of_a_previous_calibration_are_read(tmp_path: Path, prior: float) -> None:
    """They only move a coefficient to one of its bounds."""
    content = content_of_shipped() | {"priors": {each.name: prior for each in PRIORS}, "formulas": "0-old"}
    written(tmp_path, content, "previous")
    found = read_previous(tmp_path)
    assert found is not None
    assert all(math.isfinite(each.offset) for each in found.offsets)


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
