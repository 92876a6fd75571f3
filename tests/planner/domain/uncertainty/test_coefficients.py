"""The priors: complete, inside their bounds, and honest about what settled them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import get_args

import pytest

from planner.domain.uncertainty.coefficients import PRIORS, Coefficients, Prior
from planner.domain.uncertainty.prior import SettledBy
from planner.predicting import estimate
from planner.report.prediction.sections import build_sections
from planner.report.prediction.subject import Subject
from planner.report.prediction.to_json import to_json
from planner.report.prediction.value_sources import settled_coefficients
from tests.jobs import resolved


def subject(coefficients: Coefficients) -> Subject:
    """One explained prediction."""
    scenario = resolved({"model": "7b", "method": "qlora", "gpu": "4090", "seq": 1024})
    return Subject(
        scenario, estimate(scenario, coefficients, explain=True), explain=True, coefficients=coefficients
    )


def test_every_coefficient_has_a_prior() -> None:
    """Nothing but the name is without bounds, unit, source and what settled it."""
    assert {prior.name for prior in PRIORS} == {field.name for field in fields(Coefficients)} - {"name"}


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: prior.name)
def test_a_prior_says_what_settled_it(prior: Prior) -> None:
    """One of the five words, a source, a unit, and a value within the bounds."""
    assert prior.settled_by in get_args(SettledBy)
    assert prior.source.strip()
    assert prior.unit
    assert prior.low <= prior.value <= prior.high


def test_a_fitted_value_is_not_called_a_prior() -> None:
    """A calibration's value names the calibration; the untouched ones keep the word of their prior."""
    fitted = replace(Coefficients(), name="mine", context_bytes=5e8)
    words = {each.prior.name: each.settled_by for each in settled_coefficients(fitted)}
    assert words["context_bytes"] == "calibration mine"
    assert words["nccl_bytes"] == "assumed"


def test_the_report_and_its_json_show_what_settled_each_value() -> None:
    """``--explain`` lists every coefficient and every switch of the stack; without it neither is printed."""
    explained = subject(Coefficients())
    titles = [section.title for section in build_sections(explained)]
    assert any(title.startswith("Coefficients") for title in titles)
    assert any(title.startswith("Switches of hf-trainer@5") for title in titles)
    document = json.loads(to_json(explained))
    assert {each["name"]: each["settled_by"] for each in document["coefficients"]}["hook_s"] == "measured"
    switches = {each["name"]: each for each in document["switches"]}
    assert switches["kbit_upcast"]["value"] == "all"
    assert switches["kbit_upcast"]["settled_by"] == "source_code"
    plain = json.loads(to_json(replace(explained, explain=False)))
    assert plain["coefficients"] is None
    assert plain["switches"] is None
