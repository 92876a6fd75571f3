"""Memory over the step, of a real job."""

from __future__ import annotations

from functools import partial

import pytest

from planner.domain.prediction import MemoryPrediction
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.over_time import timeline_of
from planner.memory.replayed import run_of
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import job_of
from tests.jobs import resolved

PRIORS = Coefficients()


scenario = partial(resolved, model="qwen2.5-0.5b", method="lora", gpu="4090", seq=512, batch=1)
"""A small LoRA job."""


@pytest.fixture(scope="module")
def memory() -> MemoryPrediction:
    """Its memory."""
    return predict_replayed(job_of(scenario(), PRIORS))


def test_the_timeline_has_the_peaks_of_the_prediction(memory: MemoryPrediction) -> None:
    """Moments are in order, add up by term,
    and the fullest is that of the prediction less what the program does not count.
    """
    made = timeline_of(scenario(), PRIORS, memory)
    events = [moment.event for moment in made.moments]
    assert events == sorted(events)
    assert all(sum(moment.terms.values()) == moment.allocated_bytes for moment in made.moments)
    assert made.peak.allocated_bytes <= memory.allocated_peak_bytes
    assert made.peak.allocated_bytes >= 0.97 * float(memory.allocated_peak_bytes)
    assert made.peak.phase == memory.limiting_phase
    assert [span.end for span in made.spans[:-1]] == [span.start for span in made.spans[1:]]


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_a_cache_that_is_emptied_is_emptied_between_the_same_requests(sharding: str) -> None:
    """DeepSpeed gives the cache back before the first step: as much is reserved as phase by phase."""
    sharded = scenario(method="full", gpus=2, sharding=sharding)
    job = job_of(sharded, PRIORS)
    made = timeline_of(sharded, PRIORS, predict_replayed(job))
    assert max(moment.reserved_bytes for moment in made.moments) == run_of(job).done.reserved_bytes
