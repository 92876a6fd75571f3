"""What Python gets of a search, of recipes made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.api.found import search_answer_of
from planner.searching.recipes.answer import RecipeGroup
from planner.units import GIB
from tests.planner.report.search.test_sections import MISS, answer, recipe

GROUP = RecipeGroup("lora", (recipe(2), recipe(4)), 5, 9)
MISSED = RecipeGroup("full", (), 0, 7, nearest=replace(MISS, config="job.toml"))
FOUND = answer(GROUP, MISSED)


def test_rows_and_nearest_misses_are_apart() -> None:
    """With the numbers of their predictions, in whole bytes, seconds and US dollars."""
    found = search_answer_of(FOUND, None)
    assert [(row.training, row.fits, row.needs_bytes) for row in found.rows] == [("lora", True, 5 * GIB)] * 2
    (miss,) = found.nearest
    assert (miss.training, miss.verdict, miss.needs_bytes) == ("full", "does_not_fit", 25 * GIB)
    row = found.rows[0]
    assert (row.driver_bytes, row.driver_interval, row.host_bytes) == (5 * GIB, None, 4 * GIB)
    assert (row.step_s, row.tokens_per_s, row.run_time_s, row.cost_usd) == (2.01, 8192.0, 3768.0, 0.46)
    # 0.44 dollars an hour at 8 samples a second.
    assert row.sample_usd == pytest.approx(0.44 / 3600 / 8)


def test_keywords_of_a_row_ask_for_it_again() -> None:
    """With the file and the calibration of the search, where there are any; they cannot be changed."""
    found = search_answer_of(FOUND, "mine")
    asked = {"method": "qlora", "batch": "2", "calibration": "mine"}
    assert found.rows[0].flags == asked
    assert found.nearest[0].flags == asked | {"config": "job.toml"}
    with pytest.raises(TypeError):
        found.rows[0].flags["batch"] = "4"  # type: ignore[index]


def test_the_best_recipe_decides() -> None:
    """Whether any fits, and the exit code."""
    found = search_answer_of(FOUND, None)
    assert (found.fits, found.exit_code, len(found.to_dict()["groups"])) == (True, 0, 2)
    short = search_answer_of(answer(MISSED, verdict="does_not_fit"), None)
    assert (short.fits, short.exit_code, short.rows) == (False, 3, ())
