"""The generated file of figures: what is written is read again, what is stale is named,
and whose figures they are.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest

from planner.calibration.score.points import points_of
from planner.catalog.location import data_dir
from planner.records.calibration_file import read_calibration
from tests.accuracy import stored
from tests.accuracy.drawn import stored_drawn
from tests.accuracy.published import core_validation
from tests.accuracy.stored import FILE_NAME, accuracy_text, differences, stored_accuracy, write_accuracy
from tests.accuracy.tables import token_rate_points


def test_the_file_is_as_it_is_written() -> None:
    """Reading and writing it again changes no byte,
    so that a difference between two versions shows figures alone.
    """
    text = (data_dir() / FILE_NAME).read_text(encoding="utf-8")
    assert accuracy_text(json.loads(text)) == text


def test_figures_are_of_the_calibration_that_ships() -> None:
    """The formulas, the rows, and the coverage of both files are those of one fit."""
    shipped = read_calibration(data_dir() / "calibration" / "default.json")
    found = stored_accuracy()
    assert (found["formulas"], found["rows"], found["groups"]) == (
        shipped.formulas,
        shipped.n_rows,
        len(shipped.groups),
    )
    assert found["coverage"] == {of: pytest.approx(share, abs=0.0006) for of, share in shipped.coverage}


def test_a_figure_that_is_another_one_is_named() -> None:
    """More than a point, a count, a goal that is gone and a point that is new;
    the day and a last digit are no difference.
    """
    before = stored_accuracy()
    now = deepcopy(before)
    now["date"] = "2001-01-01"
    now["coverage"]["driver"] += 0.009
    assert differences(before, now) == []
    now["coverage"]["driver"] += 0.02
    document = next(iter(now["documents"]))
    now["documents"][document]["false_fit"] += 1
    gone = now["goals"].pop()
    now["points"].append(["s", "driver_bytes", "r", 1, 2])
    places = [line.partition(": ")[0] for line in differences(before, now)]
    assert places[0] == "coverage.driver"
    assert f"documents.{document}.false_fit" in places
    assert any(place.startswith(f"goals[{gone['title']}, {gone['fit']}]") for place in places)
    assert places[-1].startswith("points[s driver_bytes r]")


def test_writing_a_part_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors and other estimators are written by two commands."""
    monkeypatch.setattr(stored, "data_dir", lambda: tmp_path)
    write_accuracy({"a": {"x": 0.5}, "points": [["s", 1, 2.5]]})
    write_accuracy({"a": {"x": 0.25}})
    assert stored_accuracy() == {"a": {"x": 0.25}, "points": [["s", 1, 2.5]]}


@pytest.mark.figures
def test_every_reading_of_the_four_documents_is_drawn() -> None:
    """The same rows with the same measured bytes as a validation compares, and as many rates;
    others on some of them.
    """
    rows, drawn = core_validation().rows, stored_drawn()
    measured = {each.record_id: each.measured for each in points_of(rows, "memory")}
    assert {each.record_id: each.measured for each in drawn.memory} == measured
    assert {each.record_id for each in drawn.rates} == {each.record_id for each in token_rate_points(rows)}
    assert {each.record_id: each.measured for each in drawn.others}.items() <= measured.items()
