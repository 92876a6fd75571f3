"""The numbers that --explain shows behind a time term are those that its formula read."""

from __future__ import annotations

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.predicting import estimate
from planner.throughput.time_details import with_time_details
from planner.throughput.time_inputs import job_of
from tests.jobs import resolved, typed

OFFLOADED = typed(
    "--model 7b --method full --seq 512 --gpu a100-80-sxm:4 --sharding zero3 --offload optimizer+params"
)


@pytest.mark.parametrize(("nodes", "billions"), [(1, "6.74"), (2, "3.37")])
def test_each_node_steps_its_share_of_the_parameters(nodes: int, billions: str) -> None:
    """Llama 2 has 6.738 billion parameters, and the processors of all nodes share them."""
    scenario = resolved({**OFFLOADED, "nodes": nodes})
    job, time = job_of(scenario, Coefficients()), estimate(scenario, Coefficients()).time
    assert job is not None
    assert time is not None
    details = {term.name: term.detail for term in with_time_details(job, time).terms}
    assert details["cpu_adam"] == f"{billions} B parameters per node"
