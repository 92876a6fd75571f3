"""Reports of a handful of scenarios, kept as text:
any change of a formula shows as a difference that people can read.
"""

from __future__ import annotations

import difflib

import pytest
from calibrated import JOBS, PATH, calibrated_text
from golden_tables import FOLDER, SCENARIOS, golden_path, golden_text

from planner.domain.prediction import Prediction
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.prediction import estimate
from planner.report.prediction.explain import explanations

UPDATE = "python tests/golden/regenerate.py"


def _prediction(name: str) -> Prediction:
    return estimate(resolve(from_flags(SCENARIOS[name])), explain=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_report_is_the_stored_one(name: str) -> None:
    """Verdict, terms, phases, host RAM, time, levers and assumptions are those of the file;
    else the difference is printed.
    """
    stored = golden_path(name).read_text(encoding="utf-8") if golden_path(name).is_file() else ""
    now = golden_text(name)
    lines = difflib.unified_diff(
        stored.splitlines(), now.splitlines(), f"stored {name}", "predicted now", lineterm=""
    )
    difference = "\n".join(lines)
    if difference:
        pytest.fail(f"{difference}\n\nIf this is meant: {UPDATE}", pytrace=False)


def test_calibrated_predictions_are_the_stored_ones() -> None:
    """About 40 jobs with verdict, P(fits) and intervals under a calibration that no fit moves."""
    stored = PATH.read_text(encoding="utf-8") if PATH.is_file() else ""
    lines = difflib.unified_diff(
        stored.splitlines(), calibrated_text().splitlines(), "stored", "now", lineterm="", n=0
    )
    difference = "\n".join(lines)
    if difference:
        pytest.fail(f"{difference}\n\nIf this is meant: {UPDATE}", pytrace=False)


def test_the_calibrated_jobs_are_on_both_sides_of_the_limit() -> None:
    """Jobs that all fit would show no change of verdict."""
    lines = PATH.read_text(encoding="utf-8").splitlines()
    verdicts = {line.split()[1] for line in lines if line.split() and line.split()[0] in JOBS}
    assert {"fits", "does_not_fit"} <= verdicts


def test_every_stored_table_has_a_scenario() -> None:
    """No table is left behind by a scenario that is gone."""
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == sorted(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_term_names_its_formula_and_source(name: str) -> None:
    """Each term that is not zero leads to a function whose docstring says what it counts and where that comes
    from.
    """
    explained = explanations(_prediction(name))
    assert len(explained) > 10
    assert [each.formula for each in explained if not each.text.summary] == []
    assert sorted({each.formula for each in explained if not each.text.source}) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_term_shows_its_numbers(name: str) -> None:
    """With ``explain`` each term says which numbers went into its formula."""
    assert sorted({each.formula for each in explanations(_prediction(name)) if not each.detail}) == []
