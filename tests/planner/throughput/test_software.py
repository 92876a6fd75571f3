"""Time that software takes beside the work: casts of k-bit layers, hooks of FSDP,
experts one after another, no autocast.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.catalog.stacks import load_stack
from planner.domain.prediction import TimePrediction
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.throughput.communication import HOOKS_PER_UNIT, hook_seconds, reduced_bytes, waiting_hook_seconds
from planner.throughput.step_time import predict_time
from planner.throughput.terms import pass_seconds
from planner.throughput.time_inputs import TimedJob, job_of

PRIORS = Coefficients()
MISTRAL: dict[str, Any] = {
    "model": "mistral-7b",
    "method": "qlora",
    "gpu": "a100-80-sxm",
    "seq": 1024,
    "stack": "hf-trainer@4",
}


def _job(**changes: object) -> TimedJob:
    found = job_of(resolve(from_flags(MISTRAL | changes)), PRIORS)
    assert found is not None
    return found


def _time(job: TimedJob) -> TimePrediction:
    found = predict_time(job.scenario, PRIORS)
    assert found is not None
    return found


def _seconds(job: TimedJob, name: str) -> float:
    return float(next(term.seconds for term in _time(job).terms if term.name == name))


def test_4_bit_matrices_cast_what_they_are_given_and_what_they_return() -> None:
    """Fp32 norms: 6 bytes for inputs of query, key, value, gate, up and down, their outputs,
    and what attention reads.
    """
    job = _job(load_dtype="bf16", precision="bf16-mixed")
    spared = replace(job.scenario, stack=replace(job.scenario.stack, id="spared", kbit_upcast="none"))
    narrow = job_of(spared, PRIORS)
    assert narrow is not None
    inputs, outputs, attended = 5 * 4096 + 14336, (4096 + 2 * 1024) + 2 * 14336 + 4096, 4096 + 2 * 1024
    casts = 6 * (inputs + outputs + attended) * 32
    wide, thin = (
        pass_seconds(each, "training")["elementwise"] * each.rates.memory_bytes_per_s
        for each in (job, narrow)
    )
    # Forward, recomputation and backward, beside the norms that read fp32.
    more = (wide - thin) / job.micro.computed
    assert 3 * casts < more
    assert casts > 0.15 * more


def test_fsdp_reduces_in_the_last_micro_step_where_the_loop_says_so() -> None:
    """Accelerate's loops do, torchtitan's do not."""
    of_trainer = _job(method="full", sharding="fsdp1", gpus=2, grad_accum=4)
    once = reduced_bytes(_job(method="full", sharding="fsdp1", gpus=2, grad_accum=1))
    assert reduced_bytes(of_trainer) == once
    eager = replace(
        of_trainer.scenario, stack=replace(of_trainer.scenario.stack, id="eager", fsdp_no_sync=False)
    )
    each = job_of(eager, PRIORS)
    assert each is not None
    assert reduced_bytes(each) == 4 * once


def test_adapters_that_are_units_of_fsdp1_make_the_host_wait() -> None:
    """Two units for each of seven matrices in 32 layers, in three passes;
    with FSDP2 they are part of their layer's.
    """
    job = _job(
        sharding="fsdp1", gpus=2, lora_targets=["all-linear"], method="lora", gradient_checkpointing=True
    )
    unit = 3 * HOOKS_PER_UNIT * PRIORS.hook_s
    assert waiting_hook_seconds(job) == pytest.approx(2 * 7 * 32 * unit)
    assert hook_seconds(job) == pytest.approx((2 * 7 * 32 + 32) * unit)
    assert waiting_hook_seconds(_job(sharding="fsdp", gpus=2, method="lora", stack="hf-trainer@5")) == 0
    hooks = next(term for term in _time(job).terms if term.name == "sharding_hooks")
    assert hooks.seconds - hooks.overlapped_s >= waiting_hook_seconds(job) * (1 - 1e-9)


def test_experts_one_after_another_issue_their_own_products() -> None:
    """Transformers 4 runs eight experts of three matrices,
    and asks the GPU each time which tokens are theirs.
    """
    mixtral = {"model": "mixtral-8x7b", "method": "lora"}
    apart, joined = _job(**mixtral), _job(**mixtral, stack="hf-trainer@5")
    one_by_one, at_once = (pass_seconds(each, "training") for each in (apart, joined))
    assert one_by_one["launches"] - at_once["launches"] > 32 * 8 * 3
    assert one_by_one["waits"] > 2 * 32 * 8 * 3
    assert "waits" not in at_once


def test_without_autocast_what_preparation_widened_runs_in_fp32() -> None:
    """On a T4 that is an eighth of the rate: the head, attention and adapters."""
    flags = {"gpu": "t4", "stack": "plain-torch", "attention": "sdpa", "load_dtype": "fp16"}
    wide, mixed = _job(**flags, precision="fp16"), _job(**flags, precision="fp16-mixed")
    assert load_stack("plain-torch").kbit_upcast == "all"
    assert wide.regime.is_wide
    assert not mixed.regime.is_wide
    assert _seconds(wide, "attention") > 6 * _seconds(mixed, "attention")
    assert _seconds(wide, "matmul") > _seconds(mixed, "matmul")
