"""Memory of a pipeline is that of its fullest group."""

from __future__ import annotations

import pytest

from planner.anatomy.pipeline_stages import stages_of
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.fullest_stage import fullest_job, stage_words
from planner.predicting import estimate
from tests.planner.pipelines import scenario_of


def test_memory_is_that_of_the_fullest_group() -> None:
    """No group needs more, and the answer says which one it is."""
    scenario = scenario_of(grad_accum=16, gradient_checkpointing=False)
    prediction = estimate(scenario, quick=True)
    needs = [float(estimate(each, quick=True).memory.must_have_bytes) for each in stages_of(scenario)]
    assert float(prediction.memory.must_have_bytes) == max(needs)
    (words,) = stage_words(fullest_job(scenario, Coefficients()))
    assert words in prediction.warnings
    assert f"group {needs.index(max(needs)) + 1} of the pipeline's {len(needs)}," in words


def test_more_micro_batches_need_buffers_alone() -> None:
    """1F1B holds as many activations; inputs and gradients of each micro-batch have a place of their own."""
    few, many = (
        fullest_job(scenario_of(grad_accum=count, pipeline_parallel=2), Coefficients()) for count in (8, 16)
    )
    needs = [float(estimate(each.scenario, quick=True).memory.allocated_peak_bytes) for each in (few, many)]
    buffer = 4096 * 4096 * 2
    assert needs[1] - needs[0] == pytest.approx(8 * buffer, rel=0.01)
