"""Experts over GPUs: which combinations are answered, and what they are counted as."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import UnreadCombinationError, UsageError
from planner.program.engines.groups import Sizes
from planner.program.job import Job, job_of
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.parameters import model_weights
from planner.throughput.parallel_time import exchange_seconds, exchanged_bytes
from planner.throughput.time_inputs import job_of as timed_job_of
from tests.jobs import resolved

BASE = {
    "model": "qwen3-30b-a3b", "method": "full", "gpu": "h100-sxm:8", "nodes": 2, "seq": 4096, "batch": 1,
    "expert_parallel": 8, "checkpoint_policy": "full",
}  # fmt: skip


scenario_of = partial(resolved, BASE)
"""A job of sixteen GPUs, eight of which divide the experts."""


def job(**flags: Any) -> Job:
    """The part of one GPU."""
    return job_of(scenario_of(**flags), Coefficients())


def test_what_nothing_says() -> None:
    """The stack whose mixture was read, FSDP2, and a sentence about how tokens are spread."""
    scenario = scenario_of()
    assert (scenario.stack.id, scenario.recipe.sharding.name) == ("torchtitan@2025", "fsdp")
    (said,) = [entry for entry in scenario.assumptions if entry.name == "expert_parallel"]
    assert "evenly" in said.note


def test_mixtures_that_torchtitan_lacks_are_divided_by_transformers() -> None:
    """Beside an FSDP2 of its own that casts nothing, over all GPUs."""
    scenario = scenario_of(model="mixtral-8x7b")
    assert (scenario.stack.id, scenario.recipe.sharding.name) == ("hf-trainer@5", "fsdp")
    assert (scenario.stack.fsdp2_casts, scenario.stack.fsdp_loads) == ("never", "shards")


def test_an_expert_of_all_tokens_is_not_divided() -> None:
    """Its matrices are named like those of the experts; FSDP2 divides them over all sixteen GPUs."""
    one = job(model="qwen1.5-moe-a2.7b", expert_parallel=4)
    sizes = Sizes(one)
    down = [each for each in model_weights(one) if each.name.endswith("down_proj")]
    assert {sizes.parts(each) for each in down if each.stacked} == {16 // 4}
    assert {sizes.parts(each) for each in down if not each.stacked} == {16}


def test_one_gpu_has_some_of_the_experts() -> None:
    """Of 128 experts 16, each of three matrices of 2048 x 768, in 48 layers; the router chooses among all."""
    one = job()
    whole = scenario_of().model.param_count
    assert one.base_params == whole - 48 * 112 * 3 * 2048 * 768
    assert one.model.groups[0].block.mlp.n_experts == 128
    assert one.expert_share == pytest.approx(48 * 16 * 3 * 2048 * 768 / one.base_params)


def test_all_gpus_together_update_every_parameter_once() -> None:
    """Whatever divides the experts."""
    whole = scenario_of().model.param_count
    for experts in (1, 2, 8, 16):
        assert job(expert_parallel=experts, stack="torchtitan@2025").updated == pytest.approx(whole / 16)


def test_rows_of_experts() -> None:
    """Eight experts for each of 4096 tokens, and room for eight more rows of each of 16 experts."""
    values = unit_values(job())
    assert values[Unit.ARRIVED_ROWS] == 8 * 4096 + 1
    assert values[Unit.EXPERT_ROWS] == 8 * 4096 + 8 * 16


def test_bytes_of_the_exchange() -> None:
    """There and back, forward and back, and once more there and back in a checkpointed layer's second run."""
    timed = timed_job_of(scenario_of(), Coefficients())
    plain = timed_job_of(scenario_of(gradient_checkpointing=False), Coefficients())
    assert timed is not None
    assert plain is not None
    one = 8 * 4096 * 2048 * 2
    assert exchanged_bytes(plain) == 48 * 4 * one
    assert exchanged_bytes(timed) == 48 * 6 * one


def test_an_exchange_between_nodes_takes_longer() -> None:
    """Half of the rows of sixteen GPUs cross the network."""
    seconds = [timed_job_of(scenario_of(expert_parallel=experts), Coefficients()) for experts in (8, 16)]
    inside, across = (exchange_seconds(each) for each in seconds if each is not None)
    assert across > 2 * inside


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"model": "llama-3.1-8b"}, "which has no experts"),
        ({"stack": "torchtitan"}, "it is on hf-trainer@5"),
        ({"stack": "hf-trainer@5", "sharding": "zero3"}, "it is on hf-trainer@5 .--sharding fsdp. and"),
        ({"stack": "hf-trainer@5", "versions": ("transformers==5.22.0",)}, "on stack 'hf-trainer@5'"),
        ({"stack": "automodel"}, "on stack .automodel."),
        ({"stack": "hf-trainer@5", "sharding": "hsdp"}, "with sharding hsdp; fsdp is"),
        ({"stack": "hf-trainer@5", "model": "deepseek-v3"}, "for architecture 'deepseek_v3'"),
        ({"tensor_parallel": 2}, "beside tensor"),
        ({"sharding": "zero3"}, "with sharding zero3"),
        ({"sharding": "ddp"}, "with sharding ddp"),
        ({"sharding": "zero2"}, "with sharding zero2"),
        ({"nodes": 1, "tensor_parallel": 2}, "beside tensor"),
        ({"sharding": "hsdp", "expert_parallel": 16}, "8 GPUs have one copy of the weights"),
        ({"gpu": "h100-sxm:6", "sharding": "hsdp", "expert_parallel": 4}, "do not divide by 4"),
        ({"method": "lora"}, "with adapters"),
        ({"model": "mixtral-8x7b", "stack": "torchtitan@2025"}, "for architecture 'mixtral'"),
        ({"eval_samples": 8}, "with evaluation"),
        ({"eval_batch": 8}, "with evaluation"),
        ({"nodes": 3, "expert_parallel": 24}, "do not divide by 24"),
    ],
)
def test_what_is_not_modelled(flags: dict[str, Any], reason: str) -> None:
    """One sentence that says why."""
    with pytest.raises(UnreadCombinationError, match=reason):
        scenario_of(**flags)


def test_groups_that_the_gpus_do_not_have() -> None:
    """Sixteen GPUs are no groups of three."""
    with pytest.raises(UsageError, match="groups of 3"):
        scenario_of(expert_parallel=3)


def test_more_gpus_than_experts_divide_the_rows_of_each() -> None:
    """256 GPUs over 128 experts: 32 GPUs have the same 16 experts, and each a 32nd of the rows of each."""
    from planner.program.step import step_of

    stream = step_of(job(nodes=32))
    shards = [
        n_bytes
        for slot, n_bytes in enumerate(stream.unit_bytes)
        if stream.place(slot)[1] == "layer 0 w1" and stream.place(slot)[2] == "shard"
    ]
    assert shards == [16 * 768 * 2048 / 32 * 4]


def test_copies_inside_of_hsdp() -> None:
    """Two copies of eight GPUs each, whose experts lie on four of them and the rest on all eight."""
    one = job(expert_parallel=4, sharding="hsdp")
    assert one.optimizer_shards == 8
    assert one.updated == pytest.approx(scenario_of().model.param_count / 8)
