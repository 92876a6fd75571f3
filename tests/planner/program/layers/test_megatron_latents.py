"""Multi-head latent attention under Megatron beside mcore-bridge's own code."""

from __future__ import annotations

import pytest

from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import UnreadCombinationError
from planner.program.job import Job, job_of
from planner.program.layers.megatron.latents import latent_attention
from planner.program.step import parts_of
from planner.program.view import layer_view
from tests.jobs import resolved
from tests.planner.program.layers.part_bytes import PartBytes, part_bytes

FLAGS = "--stack megatron --method full --gpu h100-sxm:8 --nodes 32 --seq 512 --expert-parallel 8"


def scenario_of(flags: str) -> Scenario:
    """A job of 256 GPUs."""
    return resolved(f"{FLAGS} {flags}")


def job_by(flags: str) -> Job:
    """The part of one GPU."""
    return job_of(scenario_of(flags), Coefficients())


@pytest.mark.parametrize(
    ("model", "kept", "kept_by_kernel", "forward", "backward"),
    [
        ("moonlight-16b-a3b", 33_280, 39_488, 40_704, 72_320),
        ("deepseek-v3", 217_600, 267_264, 286_464, 529_920),
        ("glm-4.7-flash", 54_784, 54_864, 72_448, 116_384),
    ],
)
def test_attention_allocates_what_mcore_bridges_own_does(
    model: str, kept: int, kept_by_kernel: int, forward: int, backward: int
) -> None:
    """Bytes for each token of ``MultiLatentAttention.forward`` of mcore-bridge f020e479 (patcher.py) on the
    CPU, with a norm before it, where the kernel runs again in backward and where it does not.  Modules of
    Transformer Engine and FlashAttention were replaced by functions that allocate what those save and
    return.
    """
    for again, left in (("true", kept), ("false", kept_by_kernel)):
        job = job_by(f"--model {model} --switches recomputes_attention={again}")
        assert attention_bytes(job) == pytest.approx((left, forward, backward), rel=0.001)


def attention_bytes(job: Job) -> PartBytes:
    """Of attention in the last kind of layer, with the norm before it."""
    block = job.model.groups[-1].block
    view, norm = layer_view(job, block, trained=True), block.norms[0]
    return part_bytes(job.model.hidden_size, lambda torch, x: latent_attention(torch, view, norm, x))


def test_gpus_divide_heads_and_no_latents() -> None:
    """Each has the matrices that compress, and gathers the turned part of keys and what norms made."""
    whole, half = (job_by(f"--model deepseek-v3 --tensor-parallel {parts}") for parts in (1, 2))
    of_layer = [
        {each.name: each.weight_count for each in job.model.groups[-1].block.linears} for job in (whole, half)
    ]
    divided = {name for name, count in of_layer[1].items() if count * 2 == of_layer[0][name]}
    kept = {name for name, count in of_layer[1].items() if count == of_layer[0][name]}
    assert {"q_b_proj", "kv_b_proj", "o_proj"} <= divided
    assert {"q_a_proj", "kv_a_proj_with_mqa", "gate"} <= kept
    layer = parts_of(half)[-2].template
    gathers = [
        size
        for (module, op), size in zip(layer.ops, layer.unit_bytes, strict=True)
        if op == "all_gather" and module in ("self_attention", "q_b_proj", "kv_b_proj")
    ]
    # Backward gathers what norms made again.
    assert sorted(gathers) == sorted([2 * 64, *(2 * 512, 2 * 1536) * 2])


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--context-parallel 2", "where sequences are divided"),
        ("--fp8 te-blockwise", "in 8 bits"),
        ("--method lora --tensor-parallel 2", "with adapters for latents"),
        ("--stack llama-factory-mca", "on stack 'llama-factory-mca'"),
    ],
)
def test_what_was_not_read_is_refused(flags: str, reason: str) -> None:
    """With the reason."""
    with pytest.raises(UnreadCombinationError, match=reason):
        scenario_of(f"--model moonlight-16b-a3b {flags}")
