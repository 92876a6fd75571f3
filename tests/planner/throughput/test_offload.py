"""Traffic and CPU time of states, weights and activations that lie on the host or on NVMe, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.hardware import HostSpec
from planner.domain.model import ModelSpec
from planner.domain.recipes.parallel import Parallel
from planner.domain.recipes.recipe import Numerics
from planner.throughput.offload import Transfers, cpu_adam_seconds, nvme_seconds, transfers
from planner.throughput.step_time import predict_time
from planner.units import GIGA
from tests.planner.throughput.jobs import PARAMS, PRIORS, job, predicted, recipe, scenario, term


def test_old_host_slows_the_link(llama: ModelSpec) -> None:
    """The slower of the two PCIe generations decides offload."""
    offloaded = recipe(sharding="zero3", offload="optimizer+params")
    new = predicted(scenario(llama, offloaded))
    old = predicted(scenario(llama, offloaded, host=HostSpec("old", pcie_generation=3)))
    assert term(old, "host_transfers").seconds == pytest.approx(
        2 * term(new, "host_transfers").seconds, rel=0.01
    )


def test_zero_offload_bytes(llama: ModelSpec) -> None:
    """Each of four GPUs sends a quarter of the gradients in both micro-steps and gets its new weights
    once.
    """
    held = job(scenario(llama, recipe(sharding="zero2", offload="optimizer"), gpus_per_node=4))
    moved = transfers(held)
    assert moved.exposed == pytest.approx(3 * 2 * PARAMS / 4)
    assert moved.fetched == 0


def test_offloaded_weights_are_fetched_twice_per_micro_step(llama: ModelSpec) -> None:
    """Forward and backward of both micro-steps read the host's share; new weights stay there."""
    held = job(scenario(llama, recipe(sharding="zero3", offload="optimizer+params"), gpus_per_node=4))
    moved = transfers(held)
    assert moved.fetched == pytest.approx(4 * 2 * PARAMS / 4)
    assert moved.exposed == pytest.approx(2 * 2 * PARAMS / 4)


def test_of_a_second_copy_each_gpu_fetches_a_larger_part(llama: ModelSpec) -> None:
    """Half of it in three gathers, and a quarter in the first of a step."""
    copied = replace(recipe(sharding="zero3", offload="optimizer+params"), parallel=Parallel(hpz=2))
    moved = transfers(job(scenario(llama, copied, gpus_per_node=4)))
    assert moved.fetched == pytest.approx(2 * PARAMS / 4 + 3 * 2 * PARAMS / 2)


def test_cpu_update_is_shared_by_nodes_not_by_gpus(llama: ModelSpec) -> None:
    """All GPUs of a node share its cores; two nodes halve the work of each."""
    offloaded = recipe(sharding="zero3", offload="optimizer")
    one = cpu_adam_seconds(job(scenario(llama, offloaded, gpus_per_node=4)))
    two = cpu_adam_seconds(job(scenario(llama, offloaded, gpus_per_node=4, nodes=2)))
    assert one == pytest.approx(PARAMS / PRIORS.cpu_adam_params_per_s)
    assert two == pytest.approx(one / 2)


def test_known_host_sets_the_rate(llama: ModelSpec) -> None:
    """Four slow cores, or narrow memory, limit the update; the smaller one decides."""
    offloaded = recipe(sharding="zero3", offload="optimizer")
    few_cores = HostSpec("small", cores=4, memory_bandwidth_bytes_per_s=300 * GIGA)
    narrow = HostSpec("narrow", cores=64, memory_bandwidth_bytes_per_s=30 * GIGA)
    slow = cpu_adam_seconds(job(scenario(llama, offloaded, host=few_cores)))
    assert slow == pytest.approx(PARAMS / (4 * PRIORS.cpu_adam_params_per_s_per_core))
    assert cpu_adam_seconds(job(scenario(llama, offloaded, host=narrow))) == pytest.approx(PARAMS / GIGA)


def test_nvme_reads_and_writes_the_state(llama: ModelSpec) -> None:
    """12 bytes per parameter read and written once per step."""
    held = job(scenario(llama, recipe(sharding="zero3", offload="optimizer-nvme")))
    assert nvme_seconds(held) == pytest.approx(24 * PARAMS / PRIORS.nvme_bytes_per_s)


def test_weights_and_activations_travel_together(llama: ModelSpec) -> None:
    """What each takes alone is added up."""
    moved = [
        transfers(job(scenario(llama, recipe(sharding="zero3", offload=offload), gpus_per_node=4)))
        for offload in ("optimizer+params", "activations", "optimizer+params+activations")
    ]
    params, activations, both = moved
    assert both == Transfers(params.fetched, params.exposed, activations.saved)
    assert activations.fetched == activations.exposed == 0


def test_offloaded_activations_travel_both_ways(llama: ModelSpec) -> None:
    """With checkpointing each layer's bf16 input leaves and returns:
    2 x 2 x 32 x 4096 bytes per token.
    """
    held = job(scenario(llama, recipe(offload="activations", numerics=Numerics("bf16", "bf16"))))
    assert transfers(held).saved == 2 * 2 * 2 * 32 * 4096 * 4 * 1024


def test_offloaded_activations_travel_beside_kernels(llama: ModelSpec) -> None:
    """torchtune's README: 3B trains as fast with them on the host; what kernels do not cover shows."""
    held = scenario(llama, recipe(offload="activations", numerics=Numerics("bf16", "bf16")))
    for efficiency, shows in ((PRIORS.pcie_efficiency, False), (PRIORS.pcie_efficiency / 100, True)):
        time = predict_time(held, replace(PRIORS, pcie_efficiency=efficiency))
        assert time is not None
        moved = term(time, "host_transfers")
        assert (moved.seconds > moved.overlapped_s) is shows
