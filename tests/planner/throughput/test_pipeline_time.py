"""Seconds of a pipeline: what groups of GPUs wait for one another, and what they hand on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.anatomy.pipeline_stages import stages_of
from planner.domain.recipes.parallel import Parallel
from planner.domain.uncertainty.coefficients import Coefficients
from planner.predicting import estimate
from planner.throughput.pipeline_time import bubble_seconds, handed_on_bytes, pass_seconds_of
from planner.throughput.step_time import predict_time
from tests.planner.pipelines import scenario_of


def test_the_bubble_of_equal_groups() -> None:
    """(n - 1) / (m + n - 1) of a round, and half of it where each group has two runs of layers."""
    from planner.throughput.time_inputs import job_of as timed

    scenario = scenario_of()
    job = timed(stages_of(scenario)[0], Coefficients())
    assert job is not None
    passes = 8.0
    bubble = float(bubble_seconds(job, 3 * passes))
    assert bubble / (passes + bubble) == pytest.approx(3 / (8 + 3))
    twice = timed(stages_of(scenario_of(pipeline_schedule="interleaved"))[0], Coefficients())
    assert twice is not None
    assert bubble_seconds(twice, 3 * passes) == bubble / 2
    # Eight micro-batches of 4096 tokens: out and back, 4096 numbers of two bytes for each token.
    assert handed_on_bytes(job) == 2 * 8 * 4096 * 4096 * 2


def test_time_is_that_of_the_slowest_group_and_what_it_waits() -> None:
    """Terms add up; the rates are those of all GPUs."""
    scenario = scenario_of()
    time = estimate(scenario, quick=True).time
    assert time is not None
    own = [predict_time(each, Coefficients()) for each in stages_of(scenario)]
    slowest = max(float(pass_seconds_of(each)) for each in own if each is not None)
    assert float(pass_seconds_of(time)) == slowest
    assert sum(float(each.seconds - each.overlapped_s) for each in time.terms) == pytest.approx(time.step_s)
    assert time.tokens_per_s == pytest.approx(2 * 8 * 4096 / time.step_s)
    whole = predict_time(
        replace(scenario, recipe=replace(scenario.recipe, parallel=Parallel())), Coefficients()
    )
    assert whole is not None
    assert time.model_flop_per_step == pytest.approx(whole.model_flop_per_step / 4, rel=1e-6)
