"""The token table's gradient where torchtitan divides features, beside dry runs of torchtitan 0.2.2."""

from __future__ import annotations

import pytest

from planner.memory.replayed import replayed
from tests.jobs import job_by

JOB = {"model": "llama-3.1-8b", "method": "full", "stack": "torchtitan", "loss": "hf", "gpu": "h100-sxm:8"}
JOB |= {"seq": 2048, "batch": 1, "gradient_checkpointing": True, "checkpoint_policy": "full"}


@pytest.mark.parametrize(
    ("said", "gib"),
    [({"tensor_parallel": 8, "precision": "fp32"}, 16.98), ({"tensor_parallel": 4}, 16.45)],
    ids=["alone", "beside FSDP"],
)
def test_the_gradient_is_that_of_the_whole_table(said: dict[str, object], gib: float) -> None:
    """It waits for the optimizer, or FSDP sums it; a fourth of it would be 0.7 to 1.7 GiB less."""
    flags = {**JOB, **said, "switches": "whole_table_gradient=true"}
    phases = replayed(job_by(flags)).phases
    assert max(int(each.allocated_bytes) for each in phases) / 2**30 == pytest.approx(gib, rel=0.015)
