"""Reports of a handful of scenarios, kept as text:
any change of a formula shows as a difference that people can read.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from importlib.metadata import version

import pytest
from calibrated import JOBS, PATH, calibrated_text
from fixed_coefficients import VALUES, offsets_to_fixed
from golden_tables import FOLDER, SCENARIOS, golden_path, golden_text

from planner.catalog.packages import parsed_version
from planner.domain.prediction import Prediction
from planner.domain.uncertainty.coefficients import PRIORS
from planner.domain.uncertainty.hierarchy import moved
from planner.predicting import estimate
from planner.report.prediction.explain import explanations
from tests.jobs import resolved

UPDATE = "python tests/golden/regenerate.py"


def _prediction(name: str) -> Prediction:
    return estimate(resolved(SCENARIOS[name]), explain=True)


def _lines(text: str) -> list[str]:
    """Rich before 14.3 also pads the last column of a table, so there gaps of any width are alike."""
    if parsed_version("rich", version("rich")) < (14, 3, 0):
        text = re.sub(" {2,}", "  ", text)
    return text.splitlines()


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_report_is_the_stored_one(name: str) -> None:
    """Verdict, terms, phases, host RAM, time, levers and assumptions are those of the file;
    else the difference is printed.
    """
    stored = golden_path(name).read_text(encoding="utf-8") if golden_path(name).is_file() else ""
    sides = (_lines(stored), _lines(golden_text(name)))
    lines = difflib.unified_diff(*sides, f"stored {name}", "predicted now", lineterm="")
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


def test_every_coefficient_of_the_tables_is_fixed() -> None:
    """A new coefficient gets a value here, too; else the tables would move with its literature value."""
    assert set(VALUES) == {each.name for each in PRIORS}


def test_another_literature_value_moves_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets take any literature value to the fixed one."""
    others = tuple(replace(each, value=each.value * 1.01 + 0.001 * each.high) for each in PRIORS)
    monkeypatch.setattr("fixed_coefficients.PRIORS", others)
    by_name = {each.name: each for each in others}
    monkeypatch.setattr("planner.domain.uncertainty.hierarchy.PRIOR_BY_NAME", by_name)
    found = {each.knob.coefficient: moved(each.knob.coefficient, each.offset) for each in offsets_to_fixed()}
    assert found == pytest.approx(VALUES)


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
