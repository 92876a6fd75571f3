"""What offload keeps in host RAM, beside two real processes of DeepSpeed on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")
import_or_skip("deepspeed")

from scenarios import Setup, scenario
from test_zero_shards import MODEL, OFFLOADED, WORLD, Reports, reports  # noqa: F401, a fixture

from planner.domain.recipes.sharding import ShardingName
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory import host
from planner.program.job import Job, job_of

pytestmark = pytest.mark.real


def offloaded(name: str) -> Job:
    """The job of a run of the two processes."""
    case = OFFLOADED[name]
    sharding: ShardingName = "zero2" if case.stage == 2 else "zero3"
    setup = Setup(rank=case.rank, sharding=sharding, world=WORLD, mixed=True, optimizer="adamw_torch")
    made = scenario(MODEL, setup)
    batch = replace(made.recipe.batch, grad_accum=case.accum)
    recipe = replace(made.recipe, batch=batch, offload=case.offload)
    return job_of(replace(made, recipe=recipe), Coefficients())


@pytest.mark.parametrize("name", OFFLOADED)
def test_host_buffers_are_those_of_real_deepspeed(
    name: str,
    reports: Reports,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """States, masters, gradients and weights of one process.  Pinned blocks are rounded on a machine with
    CUDA alone.
    """
    monkeypatch.setattr(host, "pinned_bytes", lambda exact_bytes: exact_bytes)
    job = offloaded(name)
    terms = (
        host.offloaded_optimizer_bytes(job),
        host.offloaded_gradient_bytes(job),
        host.upload_buffer_bytes(job),
        host.offloaded_parameter_bytes(job),
    )
    # A gradient on the border of two partitions is accumulated whole by both.
    rest = 0.01 if OFFLOADED[name].accum > 1 else 0
    for report in reports[name]:
        real = report["states"] + sum(report["host"].values())
        assert float(sum(terms)) == pytest.approx(real, rel=rest)
