"""The operators of a term, of real jobs."""

from __future__ import annotations

import re
from functools import partial

import pytest

from planner.domain.prediction import MemoryPrediction
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import replayed
from planner.memory.replayed_peak import predict_replayed
from planner.memory.shares import Share, shares_by_phase, with_shares
from planner.program.job import Job, job_of
from planner.units import MIB
from tests.jobs import resolved

PRIORS = Coefficients()


scenario = partial(resolved, model="qwen2.5-0.5b", method="lora", gpu="4090", seq=512, batch=1)
"""A small LoRA job."""


def job(**flags: object) -> Job:
    """The same, ready for formulas."""
    return job_of(scenario(**flags), PRIORS)


@pytest.fixture(scope="module")
def memory() -> MemoryPrediction:
    """Its memory."""
    return predict_replayed(job_of(scenario(), PRIORS))


def test_operators_of_a_term_are_counted_by_layer(memory: MemoryPrediction) -> None:
    """24 equal layers are one entry, and all entries of a term at the peak add up to it."""
    named = with_shares(job_of(scenario(), Coefficients()), memory)
    weights = next(
        term for term in named.terms if term.name == "weights" and memory.limiting_phase in term.phases
    )
    assert re.search(r"24 layers x \w+_proj weight 8\.3 MiB", weights.detail)
    assert str(Share("q_proj mm", 24, 2, 16 * MIB)) == "24 layers x 2 x q_proj mm 16.0 MiB"
    assert Share("q_proj mm", 24, 2, 16 * MIB).total_bytes == 768 * MIB


def test_the_operators_of_a_phase_add_up_to_its_terms() -> None:
    """At the fullest moment of the backward pass; all layers together."""
    one = job(method="qlora", seq=1024)
    found = shares_by_phase(one, {"backward_2": ["weights"]})["backward_2"]["weights"]
    assert sum(share.total_bytes for share in found) == pytest.approx(
        next(phase for phase in replayed(one).phases if phase.phase == "backward_2").terms["weights"],
        rel=1e-2,
    )
    assert max(share.n_layers for share in found) == 24
