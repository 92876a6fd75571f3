"""What GPUs send one another in a step, counted by hand."""

from __future__ import annotations

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.throughput.communication import (
    HOOKS_PER_PASS,
    broadcast_latency_seconds,
    broadcasts,
    collective_seconds,
    gathered_bytes,
    hook_seconds,
    reduced_bytes,
    update_bytes,
    update_collective_seconds,
)
from planner.throughput.kernel_time import optimizer_seconds
from planner.throughput.terms import modules_called
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


def of_whole_tensors(nodes: int, **flags: object) -> TimedJob:
    """A full fine-tune under ZeRO-1 on nodes of eight GPUs, by the stack whose GPUs own whole tensors."""
    said = {
        "model": "qwen3-0.6b", "method": "full", "gpu": "a100-80-sxm:8", "nodes": nodes, "seq": 512,
        "host": "network-400g", "stack": "internevo", "sharding": "zero1", **flags,
    }  # fmt: skip
    job = job_of(resolve(from_flags(said)), Coefficients())
    assert job is not None
    return job


def test_each_gpu_broadcasts_the_tensors_that_it_updated() -> None:
    """16 times around a ring of 16 GPUs at 4 us a hop, and all weights in 16 bits over 0.7 of 50 GB/s, beside
    the sum of gradients, which is the same however weights are spread.
    """
    job = of_whole_tensors(2)
    weights = 2 * job.trained_params * 15 / 16
    assert update_bytes(job) == pytest.approx(weights)
    assert broadcast_latency_seconds(job) == pytest.approx(16 * 16 * 4e-6)
    assert update_collective_seconds(job) == pytest.approx(weights / 35e9 + 16 * 16 * 4e-6)
    gathered = of_whole_tensors(2, switches="zero1_update=gathered")
    assert update_bytes(gathered) == broadcasts(gathered) == broadcast_latency_seconds(gathered) == 0
    assert reduced_bytes(gathered) == pytest.approx(reduced_bytes(job))


def test_no_more_gpus_broadcast_than_there_are_tensors() -> None:
    """28 layers of nine tensors, with query, key and value in one; the table and the last norm.

    Each goes around a ring of 512 GPUs.
    """
    job = of_whole_tensors(64)
    assert broadcasts(job) == 28 * 9 + 2
    assert broadcast_latency_seconds(job) == pytest.approx((28 * 9 + 2) * 512 * 4e-6)


def test_groups_of_a_node_broadcast_over_its_own_links() -> None:
    """Eight times around eight GPUs at the rate of NVLink, whatever the other nodes do; hops take no time."""
    job = of_whole_tensors(64, switches="zero1_update=broadcast_in_node")
    weights = 2 * job.trained_params * 7 / 8
    expected = weights / (0.7 * 300e9)
    assert update_collective_seconds(job) == pytest.approx(expected)


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


def of_sixteen(**flags: object) -> TimedJob:
    """A full fine-tune of a mixture over two nodes of eight GPUs."""
    said = {
        "model": "qwen3-30b-a3b", "method": "full", "gpu": "h100-sxm:8", "nodes": 2, "seq": 512,
        "stack": "torchtitan@2025", "sharding": "fsdp",
    }  # fmt: skip
    job = job_of(resolve(from_flags(said | flags)), Coefficients())
    assert job is not None
    return job


def test_experts_that_are_divided_are_gathered_by_those_that_have_them() -> None:
    """Of 16 GPUs eight divide the experts, so two have the same; the rest comes from all 16.

    A layer of Qwen3 30B-A3B has 128 experts of 3 x 2,048 x 768; two gathers of two bytes each.
    """
    experts = 48 * 128 * 3 * 2_048 * 768
    others = of_sixteen().own.scenario.model.param_count - experts
    expected = 2 * 2 * (experts / 8 * 1 / 2 + others * 15 / 16)
    assert gathered_bytes(of_sixteen(expert_parallel=8)) == pytest.approx(expected)
    assert gathered_bytes(of_sixteen()) == pytest.approx(2 * 2 * (experts + others) * 15 / 16)


def test_what_remains_of_experts_crosses_the_network_slower_than_a_ring_of_all() -> None:
    """Eight rings share the network of a node where the GPUs that have the same experts are apart."""
    divided_, whole = of_sixteen(expert_parallel=8), of_sixteen()
    bytes_less = gathered_bytes(divided_) / gathered_bytes(whole)
    assert collective_seconds(divided_) > bytes_less * collective_seconds(whole)


def test_one_copy_of_hsdp_is_updated_by_its_own_gpus() -> None:
    """Eight GPUs of a copy each update twice as much as sixteen that share one."""
    one, two = (optimizer_seconds(of_sixteen(sharding=name)) for name in ("fsdp", "hsdp"))
    assert two == pytest.approx(2 * one)


def test_zero3_runs_hooks_in_each_pass() -> None:
    """Forward and backward, and the second forward of a checkpoint: two passes, or three."""
    flags = {
        "model": "qwen3-0.6b", "method": "full", "gpu": "h100-sxm:8", "seq": 512,
        "stack": "hf-trainer@5", "sharding": "zero3",
    }  # fmt: skip
    seconds = []
    for checkpoints in (False, True):
        job = job_of(resolve(from_flags({**flags, "gradient_checkpointing": checkpoints})), Coefficients())
        assert job is not None
        seconds.append(hook_seconds(job) / modules_called(job) / HOOKS_PER_PASS / job.coefficients.hook_s)
    assert seconds == pytest.approx([2, 3])
