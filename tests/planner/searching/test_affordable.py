"""How much is tried beside a job: all of a usual one, little of a large one, nothing of the largest."""

from __future__ import annotations

import pytest

from planner.api.answering import answer_job
from planner.searching import affordable
from planner.searching.levers import MAX_ESTIMATES
from tests.jobs import resolved

JOB = {"model": "gpt2", "method": "full", "gpu": "4090", "seq": "64"}


def test_a_usual_job_is_compared_with_all_others() -> None:
    """GPT-2 has 148 tensors: no count of estimates is lower for it."""
    scenario = resolved(JOB)
    assert 148 < affordable.n_allocations(scenario) < 1000
    assert affordable.is_affordable(scenario)
    assert affordable.n_affordable(scenario) >= MAX_ESTIMATES
    assert affordable.n_affordable(scenario, quick=True) >= 2 * affordable.n_affordable(scenario)


def test_of_a_larger_one_fewer_settings_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest changes and the first settings, as many as there is time for."""
    every = answer_job(JOB)
    n_made = affordable.n_allocations(resolved(JOB))
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


def test_code_with_a_tensor_for_each_expert_is_not_tried_beside_code_with_one_for_all() -> None:
    """DeepSeek-V3 has 58 layers of 256 experts, whose matrices are 44,544 tensors under Transformers 4."""
    flags = {"model": "deepseek-v3", "method": "qlora", "gpu": "a100-80-sxm", "seq": "512"}
    job = resolved(flags)
    older = resolved({**flags, "stack": "hf-trainer@4"})
    assert affordable.is_affordable_beside(job, job)
    assert not affordable.is_affordable_beside(job, older)
    unsaid = answer_job(flags).unsaid
    assert unsaid
    assert not any("hf-trainer@4" in each.flags for each in unsaid)
    mixtral = {**flags, "model": "mixtral-8x7b"}
    assert any("hf-trainer@4" in each.flags for each in answer_job(mixtral).unsaid or ())
