"""What GPUs send one another in a step, counted by hand."""

from __future__ import annotations

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.throughput.communication import hook_seconds, update_bytes
from planner.throughput.time_inputs import TimedJob, job_of


def divided(optimizer: str) -> TimedJob:
    """A full fine-tune that FSDP2 divides over eight GPUs."""
    flags = {"model": "qwen3-0.6b", "method": "full", "gpu": "h100-sxm:8", "seq": 512}
    job = job_of(
        resolve(
            from_flags({**flags, "stack": "llama-factory-v1", "sharding": "fsdp", "optimizer": optimizer})
        ),
        Coefficients(),
    )
    assert job is not None
    return job


def test_muon_sends_whole_gradients_and_parts_of_updates() -> None:
    """4 and 2 bytes for each element of the layers' matrices, of which an eighth is there already.

    A layer of Qwen3 0.6B: 1,024 features, 2,048 of queries, 1,024 of keys and of values, 3,072 hidden ones.
    """
    layer = 1_024 * (2_048 + 1_024 + 1_024 + 2_048 + 3 * 3_072)
    assert update_bytes(divided("muon")) == pytest.approx(6 * 28 * layer * 7 / 8)
    assert update_bytes(divided("adamw_torch")) == 0


def test_adapters_that_are_units_of_fsdp2_call_hooks_of_their_own() -> None:
    """Two matrices for each of seven in a layer, beside the layer."""
    shared = {
        "model": "qwen3-0.6b",
        "method": "lora",
        "gpu": "h100-sxm:8",
        "seq": 512,
        "sharding": "fsdp",
        "lora_targets": "all-linear",
        "gradient_checkpointing": True,
    }
    seconds = [
        hook_seconds(job)
        for stack in ("llama-factory-v1", "hf-trainer@5")
        if (job := job_of(resolve(from_flags({**shared, "stack": stack})), Coefficients())) is not None
    ]
    assert seconds[0] == pytest.approx((1 + 2 * 7) * seconds[1])
