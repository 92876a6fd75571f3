"""How much is tried beside a job: all of a usual one, little of a large one, nothing of the largest."""

from __future__ import annotations

import pytest

from planner.api.answering import answer_job
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.searching import affordable
from planner.searching.levers import MAX_ESTIMATES

JOB = {"model": "gpt2", "method": "full", "gpu": "4090", "seq": "64"}


def test_a_usual_job_is_compared_with_all_others() -> None:
    """GPT-2 has 148 tensors: no count of estimates is lower for it."""
    scenario = resolve(from_flags(JOB))
    assert 148 < affordable.n_allocations(scenario) < 1000
    assert affordable.is_affordable(scenario)
    assert affordable.n_affordable(scenario) >= MAX_ESTIMATES
    assert affordable.n_affordable(scenario, quick=True) >= 2 * affordable.n_affordable(scenario)


def test_of_a_larger_one_fewer_settings_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest changes and the first settings, as many as there is time for."""
    every = answer_job(JOB)
    n_made = affordable.n_allocations(resolve(from_flags(JOB)))
    monkeypatch.setattr(affordable, "_MAX_ALLOCATIONS", 2 * n_made)
    some = answer_job(JOB)
    assert some.unsaid is not None
    assert every.unsaid is not None
    assert len(some.unsaid) <= 2 < len(every.unsaid)
    assert len(some.levers or ()) <= 2 < len(every.levers or ())
    assert some.prediction == every.prediction


def test_of_the_largest_nothing_is_and_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looked for anything; the prediction is the same."""
    monkeypatch.setattr(affordable, "_MOST_ALLOCATIONS", 100)
    subject = answer_job(JOB)
    assert subject.levers is None
    assert subject.unsaid is None
    assert any("no other settings were tried" in warning for warning in subject.warnings)
