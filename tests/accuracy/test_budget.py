"""The error budget of the published rows and their list of misses;
`make accuracy` holds all of them to what is stored.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from planner.calibration.score.validate import SourceScore, validate
from planner.catalog.location import data_dir
from planner.records import read_records
from tests.accuracy import budget
from tests.accuracy.budget import (
    beyond_budget,
    budget_figures,
    budget_part,
    loosened,
    rounded_up,
    stored_budget,
)
from tests.accuracy.misses import stored_misses
from tests.accuracy.published import published_dir

DOCUMENTS = sorted(path.stem for path in published_dir().glob("*.csv"))
REGENERATE = "see `plan validate 'data/published/*.csv' --rows`; `make regenerate` writes the new figures"


@pytest.fixture(scope="module")
def scores() -> dict[str, SourceScore]:
    """Three documents of few rows, scored: memory and time, memory alone, time alone."""
    files = [published_dir() / f"{name}.csv" for name in ("torchtitan_h100", "colossalai", "fms_fsdp")]
    return {score.source: score for score in validate(read_records(files)).sources}


def test_the_budget_covers_every_document(scores: dict[str, SourceScore]) -> None:
    """Each published document has its figures,
    and no figure is for a document or a quantity that is not there.
    """
    stored = stored_budget()
    assert stored.keys() == set(DOCUMENTS)
    for name, score in scores.items():
        assert set(stored[name]) == set(budget_figures(score))


def test_errors_stay_within_the_budget(scores: dict[str, SourceScore]) -> None:
    """No error, false verdict or number of rows without a model grows beyond what is stored."""
    assert beyond_budget(list(scores.values())) == [], REGENERATE


def test_a_figure_beyond_the_budget_is_named(scores: dict[str, SourceScore]) -> None:
    """A document that has no figures may have no error, and each of its figures is named with its value."""
    unknown = replace(
        next(score for score in scores.values() if score.memory and score.memory.mape > 0.02),
        source="unknown",
    )
    assert any(line.startswith("unknown: memory_mape is 0.") for line in beyond_budget([unknown]))


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.08312, 0.084), (0.29, 0.29), (1.2345, 1.3), (0.0051, 0.006), (0.0, 0.0), (0.1001, 0.11)],
)
def test_budget_figures_are_rounded_up_at_the_second_digit(value: float, rounded: float) -> None:
    """Up, to two significant digits, never finer than a thousandth."""
    assert rounded_up(value) == rounded


def test_a_budget_that_is_loosened_has_a_reason() -> None:
    """Figures worse than they ever were, by a point, a verdict or a row,
    are those that the list of reasons has.
    """
    reasons = tomllib.loads((data_dir() / "loosened.toml").read_text(encoding="utf-8"))["error_budget"]
    assert sorted(loosened()) == sorted(reasons)


def test_the_best_budget_is_kept(monkeypatch: pytest.MonkeyPatch, scores: dict[str, SourceScore]) -> None:
    """A figure that grows leaves its old value behind as the best there was; a better best stays;
    an equal one leaves none.
    """
    score = next(score for score in scores.values() if score.memory and score.memory.mape > 0.02)
    document, reached = score.source, budget_part([score])["documents"][score.source]["memory_mape"]
    for before, best, kept in (
        (0.015, {}, 0.015),
        (reached, {"memory_mape": 0.005}, 0.005),
        (reached, {}, None),
    ):
        stored = {"budget": {"documents": {document: {"memory_mape": before}}, "best": {document: best}}}
        monkeypatch.setattr(budget, "stored_or_empty", lambda stored=stored: stored)
        assert budget_part([score])["best"].get(document, {}).get("memory_mape") == kept
    monkeypatch.setattr(budget, "stored_budget", lambda: {document: {"memory_mape": 0.05, "false_fit": 1}})
    monkeypatch.setattr(budget, "best_figures", lambda: {document: {"memory_mape": 0.045, "false_fit": 0}})
    assert loosened() == (f"{document}: false_fit",)


def test_only_published_rows_are_listed() -> None:
    """A mechanism is of rows that there are."""
    known = {record.id for record in read_records([published_dir() / "*.csv"]).records}
    assert {row for table in stored_misses().values() for group in table for row in group.rows} <= known


def test_every_group_of_misses_says_why() -> None:
    """No mechanism is empty, and no group is without rows."""
    groups = [group for table in stored_misses().values() for group in table]
    assert groups
    assert all(group.mechanism.strip() and group.pattern.strip() and group.rows for group in groups)
