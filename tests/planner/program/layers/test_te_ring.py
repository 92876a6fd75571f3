"""Attention over sequences that GPUs divide under Megatron, beside Transformer Engine's own function."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from planner.program.layers.megatron.te_exchange import by_te_exchange
from planner.program.layers.megatron.te_ring import by_te_ring
from planner.program.ops.autograd import run_backward
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Node, Tensor, Unit
from planner.program.step import parts_of
from planner.program.view import LayerView, layer_view
from tests.jobs import job_by
from tests.planner.program.layers.part_bytes import Meter, PartBytes

JOB = "--model qwen2.5-7b --method full --gpu h100-sxm:8 --seq 32k"
WIDTH, KEYS, HEADS = 3584, 512, 28
Attention = Callable[[Operators, LayerView, Tensor, Tensor, Tensor], Tensor]


def meters(stack: str, parts: int, attend: Attention = by_te_ring) -> PartBytes:
    """Bytes for each token of one GPU: left by the forward pass, at the most in it, and in backward."""
    job = job_by(f"{JOB} --stack {stack} --context-parallel {parts}")
    torch, meter = Operators(), Meter()
    torch.enter("ports")
    torch.new(Unit.TOKENS, 1, "bf16", "first slot", cost=None)

    def entry(width: int) -> Tensor:
        x = torch.new(Unit.TOKENS, width, "bf16", "input", cost=None)
        x.node = Node("input", sys.maxsize, None)
        return x

    inputs = [entry(width) for width in (WIDTH, KEYS, KEYS)]
    own = sum(2 * each.count for each in inputs)
    torch.enter("forward")
    out = attend(torch, layer_view(job, job.model.groups[0].block, trained=True), *inputs)
    root, out.node = out.node, None
    meter.follow(torch, "forward")
    kept, forward = meter.now, meter.most
    torch.enter("nowhere")
    arrived = [torch.like(out, "gradient", cost=None)]
    assert root is not None
    torch.enter("backward")
    run_backward(torch, root, arrived)
    meter.follow(torch, "backward")
    assert own == 2 * (WIDTH + 2 * KEYS)
    return kept, forward, meter.most


@pytest.mark.parametrize(("parts", "forward"), [(2, 27_408), (4, 46_064), (8, 83_376)])
def test_a_ring_allocates_what_transformer_engines_own_does(parts: int, forward: float) -> None:
    """``AttnFuncWithCPAndKVP2P`` of commit d0067d0d on the CPU, as the last GPU: 4,096 tokens of its own, 28
    heads and 4 of keys, 128 wide.  Kernels and what is sent were replaced by empty tensors of their size,
    those of FlashAttention's backward by its workspaces; sums of logarithms ran uncompiled.
    """
    kept, most, backward = meters("llama-factory-mca", parts)
    assert kept == pytest.approx(9_328)
    assert most == pytest.approx(forward, rel=0.02)
    assert backward == pytest.approx(62_688)


@pytest.mark.parametrize("parts", [2, 4])
def test_exchanged_heads_allocate_what_transformer_engines_own_do(parts: int) -> None:
    """``AttnFuncWithCPAndQKVOA2A`` under the same conditions."""
    found = meters("llama-factory-mca", parts, by_te_exchange)
    assert found == pytest.approx((23_664, 38_000, 68_832))
    assert meters("megatron", parts, by_te_exchange)[0] == 2 * WIDTH


def test_ms_swift_keeps_inputs_and_runs_the_ring_again() -> None:
    """Beside them the output, which the projection behind keeps; unless whole layers are computed again."""
    kept, _, backward = meters("megatron", 4)
    assert kept == 2 * WIDTH
    assert backward > meters("llama-factory-mca", 4)[2]
    flags = f"{JOB} --stack megatron --context-parallel 4 --gradient-checkpointing"
    layer = next(part.template for part in parts_of(job_by(flags)) if part.name == "layer")
    calls = [op for _, op in layer.ops].count("flash_attention")
    # Output and logarithms of four steps, twice; and four times what a backward makes.
    assert calls == 2 * 2 * 4


def test_every_second_step_has_a_stream_of_its_own() -> None:
    """Its outputs and what it receives lie in other segments."""
    layer = next(
        part.template
        for part in parts_of(job_by(f"{JOB} --stack llama-factory-mca --context-parallel 2"))
        if part.name == "layer"
    )
    assert [layer.ops[slot][1] for slot in layer.elsewhere] == [
        "thd_read_half_tensor",
        "thd_read_half_tensor",
        "flash_attention",
        "flash_attention",
    ]


def test_gpus_that_divide_sequences_divide_states_too() -> None:
    """As GPUs with batches of their own do; each has its part of the tokens."""
    divided = job_by(f"{JOB} --stack megatron --context-parallel 4 --tensor-parallel 2")
    assert divided.optimizer_shards == 4
    assert divided.recipe.batch.seq_len == 32 * 1024 // 4
