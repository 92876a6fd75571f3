"""What GPUs send one another in a step, and the hooks around it, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.model import ModelSpec
from planner.domain.recipes.parallel import Parallel
from planner.domain.recipes.recipe import Numerics
from planner.domain.uncertainty.coefficients import Coefficients
from planner.throughput.communication import (
    HOOKS_PER_PASS,
    HOOKS_PER_UNIT,
    broadcast_latency_seconds,
    broadcasts,
    collective_seconds,
    gathered_bytes,
    hook_seconds,
    quantized_bytes,
    reduced_bytes,
    replica_bytes,
    ring_fraction,
    second_copy_bytes,
    update_bytes,
    update_collective_seconds,
    waiting_hook_seconds,
)
from planner.throughput.kernel_time import optimizer_seconds
from planner.throughput.rates import intra_node_bytes_per_s
from planner.throughput.time_inputs import TimedJob, job_of
from planner.units import GIGA
from tests.jobs import resolved, typed
from tests.planner.throughput.jobs import (
    LORA_WIDTHS,
    PARAMS,
    PRIORS,
    job,
    mistral_job,
    predicted,
    recipe,
    scenario,
    term,
)


def divided(optimizer: str) -> TimedJob:
    """A full fine-tune that FSDP2 divides over eight GPUs."""
    flags = {"model": "qwen3-0.6b", "method": "full", "gpu": "h100-sxm:8", "seq": 512}
    held = job_of(
        resolved({**flags, "stack": "llama-factory-v1", "sharding": "fsdp", "optimizer": optimizer}),
        Coefficients(),
    )
    assert held is not None
    return held


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
    held = job_of(resolved(said), Coefficients())
    assert held is not None
    return held


def test_each_gpu_broadcasts_the_tensors_that_it_updated() -> None:
    """16 times around a ring of 16 GPUs at 4 us a hop, and all weights in 16 bits over 0.7 of 50 GB/s, beside
    the sum of gradients, which is the same however weights are spread.
    """
    held = of_whole_tensors(2)
    weights = 2 * held.own.trained * 15 / 16
    assert update_bytes(held) == pytest.approx(weights)
    assert broadcast_latency_seconds(held) == pytest.approx(16 * 16 * 4e-6)
    assert update_collective_seconds(held) == pytest.approx(weights / 35e9 + 16 * 16 * 4e-6)
    gathered = of_whole_tensors(2, switches="zero1_update=gathered")
    assert update_bytes(gathered) == broadcasts(gathered) == broadcast_latency_seconds(gathered) == 0
    assert reduced_bytes(gathered) == pytest.approx(reduced_bytes(held))


def test_no_more_gpus_broadcast_than_there_are_tensors() -> None:
    """28 layers of nine tensors, with query, key and value in one; the table and the last norm.

    Each goes around a ring of 512 GPUs.
    """
    held = of_whole_tensors(64)
    assert broadcasts(held) == 28 * 9 + 2
    assert broadcast_latency_seconds(held) == pytest.approx((28 * 9 + 2) * 512 * 4e-6)


def test_groups_of_a_node_broadcast_over_its_own_links() -> None:
    """Eight times around eight GPUs at the rate of NVLink, whatever the other nodes do; hops take no time."""
    held = of_whole_tensors(64, switches="zero1_update=broadcast_in_node")
    weights = 2 * held.own.trained * 7 / 8
    expected = weights / (0.7 * 300e9)
    assert update_collective_seconds(held) == pytest.approx(expected)


def test_adapters_that_are_units_of_fsdp2_call_hooks_of_their_own() -> None:
    """Two matrices for each of seven in a layer, beside the layer."""
    shared = typed(
        "--model qwen3-0.6b --method lora --gpu h100-sxm:8 --seq 512 --sharding fsdp "
        "--lora-targets all-linear --gradient-checkpointing"
    )
    seconds = [
        hook_seconds(held)
        for stack in ("llama-factory-v1", "hf-trainer@5")
        if (held := job_of(resolved({**shared, "stack": stack}), Coefficients())) is not None
    ]
    assert seconds[0] == pytest.approx((1 + 2 * 7) * seconds[1])


def of_sixteen(**flags: object) -> TimedJob:
    """A full fine-tune of a mixture over two nodes of eight GPUs."""
    said = {
        "model": "qwen3-30b-a3b", "method": "full", "gpu": "h100-sxm:8", "nodes": 2, "seq": 512,
        "stack": "torchtitan@2025", "sharding": "fsdp",
    }  # fmt: skip
    held = job_of(resolved(said | flags), Coefficients())
    assert held is not None
    return held


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
        held = job_of(resolved({**flags, "gradient_checkpointing": checkpoints}), Coefficients())
        assert held is not None
        seconds.append(hook_seconds(held) / held.called_modules / HOOKS_PER_PASS / held.coefficients.hook_s)
    assert seconds == pytest.approx([2, 3])


class TestCollectives:
    """Bytes that each GPU exchanges, by hand, for 8 GPUs: a ring moves 7/8 of a tensor."""

    def test_ring(self) -> None:
        """One GPU exchanges nothing."""
        assert ring_fraction(1) == 0
        assert ring_fraction(8) == 7 / 8

    def test_ddp_reduces_once_per_step(self, llama: ModelSpec) -> None:
        """An all-reduce of the bf16 gradients, whatever the number of micro-steps."""
        held = job(
            scenario(llama, recipe(sharding="ddp", numerics=Numerics("bf16", "bf16")), gpus_per_node=8)
        )
        assert reduced_bytes(held) == pytest.approx(2 * 2 * PARAMS * 7 / 8)
        assert gathered_bytes(held) == 0

    def test_ddp_with_lora_is_tiny(self, llama: ModelSpec) -> None:
        """Only fp32 adapters travel: 4 bytes x rank x (in + out)."""
        held = job(scenario(llama, recipe("lora", sharding="ddp"), gpus_per_node=8))
        assert reduced_bytes(held) == pytest.approx(2 * 4 * 8 * LORA_WIDTHS * 7 / 8)

    def test_zero_2_reduces_every_micro_step(self, llama: ModelSpec) -> None:
        """Two micro-steps reduce twice and gather the new weights once."""
        held = job(scenario(llama, recipe(sharding="zero2"), gpus_per_node=8))
        assert reduced_bytes(held) == pytest.approx(3 * 2 * PARAMS * 7 / 8)

    def test_zero_3_gathers_frozen_weights_too(self, llama: ModelSpec) -> None:
        """All bf16 weights arrive for forward and for backward of both micro-steps, with LoRA as well."""
        held = job(scenario(llama, recipe("lora", sharding="zero3"), gpus_per_node=8))
        assert gathered_bytes(held) == pytest.approx(2 * 2 * 2 * PARAMS * 7 / 8)

    def test_grad_op_keeps_weights_between_forward_and_backward(self, llama: ModelSpec) -> None:
        """Half the gathers of full sharding."""
        full = job(scenario(llama, recipe(sharding="fsdp"), gpus_per_node=8))
        kept = job(scenario(llama, recipe(sharding="fsdp-grad-op"), gpus_per_node=8))
        assert gathered_bytes(full) == 2 * gathered_bytes(kept)

    def test_hybrid_sharding_crosses_nodes_with_one_shard(self, llama: ModelSpec) -> None:
        """Gathers stay inside the node; an eighth of the gradients is all-reduced between two nodes."""
        held = job(scenario(llama, recipe(sharding="hsdp"), gpus_per_node=8, nodes=2))
        assert gathered_bytes(held) == pytest.approx(2 * 2 * 2 * PARAMS * 7 / 8)
        assert replica_bytes(held) == pytest.approx(2 * held.regime.gradient * PARAMS / 8 / 2)

    def test_copies_meet_behind_each_reduction(self, llama: ModelSpec) -> None:
        """In both micro-steps where the loop asks for no accumulation without reduction, else in the last."""
        across = scenario(llama, recipe(sharding="hsdp"), gpus_per_node=8, nodes=2)
        each, last = (
            replica_bytes(job(replace(across, stack=replace(across.stack, id=said, fsdp_no_sync=said))))
            for said in ("neither", "both")
        )
        assert each == pytest.approx(2 * last)

    def test_every_gpu_of_a_node_has_a_ring_across_nodes(self, llama: ModelSpec) -> None:
        """Eight shards share the network; of two copies on one node each has its own links."""
        across = scenario(llama, recipe(sharding="hsdp"), gpus_per_node=8, nodes=2, network_bytes_per_s=GIGA)
        held = job(across)
        inside = (gathered_bytes(held) + reduced_bytes(held)) / intra_node_bytes_per_s(
            across.hardware, held.coefficients
        )
        network = held.rates.network_bytes_per_s
        assert collective_seconds(held) - inside == pytest.approx(replica_bytes(held) * 8 / network)

    def test_copies_inside_of_a_node(self, llama: ModelSpec) -> None:
        """Four GPUs divide what two copies have."""
        copied = replace(recipe(sharding="hsdp"), parallel=Parallel(replicas=2))
        held = job(scenario(llama, copied, gpus_per_node=8))
        assert gathered_bytes(held) == pytest.approx(2 * 2 * 2 * PARAMS * 3 / 4)
        assert replica_bytes(held) == pytest.approx(2 * held.regime.gradient * PARAMS / 4 / 2)

    def test_a_second_copy_is_gathered_inside_of_a_node(self, llama: ModelSpec) -> None:
        """Trained weights cross the network once per step; three gathers of two micro-steps do not."""
        copied = replace(recipe(sharding="zero3"), parallel=Parallel(hpz=8))
        held = job(scenario(llama, copied, gpus_per_node=8, nodes=2))
        assert gathered_bytes(held) == pytest.approx(2 * PARAMS * 15 / 16)
        assert second_copy_bytes(held) == pytest.approx(3 * 2 * PARAMS * 7 / 8)

    def test_few_bits_are_sent(self, llama: ModelSpec) -> None:
        """A byte of each weight in each of four gathers of two micro-steps; half a byte of each gradient
        inside of a node, an eighth of it across, where each GPU has an eighth of the network.
        """
        sent = scenario(llama, recipe(sharding="zero3"), gpus_per_node=8, nodes=2, network_bytes_per_s=GIGA)
        sent = replace(sent, stack=replace(sent.stack, zero3_quantized="weights+gradients"))
        held = job(sent)
        assert gathered_bytes(held) == pytest.approx(4 * PARAMS * 15 / 16)
        assert reduced_bytes(held) == 0
        inside, across = quantized_bytes(held)
        assert inside == pytest.approx(2 * PARAMS / 2 * 7 / 8)
        assert across == pytest.approx(2 * PARAMS / 2 / 8 / 2)
        network = held.rates.network_bytes_per_s
        rest = gathered_bytes(held) / held.rates.collective_bytes_per_s + across * 8 / network
        in_node = inside / intra_node_bytes_per_s(sent.hardware, held.coefficients)
        assert collective_seconds(held) == pytest.approx(rest + in_node)
        assert quantized_bytes(job(replace(sent, hardware=replace(sent.hardware, nodes=1)))) == (0, 0)

    def test_network_is_the_slowest_link_of_the_ring(self, llama: ModelSpec) -> None:
        """A second node turns NVLink's rate into the network's, and a faster network shortens the step."""
        sharded = recipe(sharding="zero3")
        slow = scenario(llama, sharded, gpus_per_node=8, nodes=2, network_bytes_per_s=5 * GIGA)
        fast = replace(slow, hardware=replace(slow.hardware, network_bytes_per_s=50 * GIGA))
        ratio = term(predicted(slow), "collectives").seconds / term(predicted(fast), "collectives").seconds
        assert ratio == pytest.approx(10)

    def test_an_unnamed_network_grows_with_the_gpus_of_a_node(self, llama: ModelSpec) -> None:
        """Servers have a network card for every few GPUs,
        so two nodes of eight exchange four times what two of two do.
        """
        rates = [
            job(scenario(llama, recipe(sharding="zero3"), gpus_per_node=gpus, nodes=2)).rates
            for gpus in (2, 8)
        ]
        assert rates[1].network_bytes_per_s == pytest.approx(4 * rates[0].network_bytes_per_s)

    def test_one_gpu_has_no_collectives(self, llama: ModelSpec) -> None:
        """A ring of one GPU moves nothing, and the term is left out."""
        names = [part.name for part in predicted(scenario(llama, recipe(sharding="zero3"))).terms]
        assert "collectives" not in names


def test_fsdp_reduces_in_the_last_micro_step_where_the_loop_says_so() -> None:
    """Accelerate's loops do, torchtitan's do not."""
    of_trainer = mistral_job(method="full", sharding="fsdp1", gpus=2, grad_accum=4)
    once = reduced_bytes(mistral_job(method="full", sharding="fsdp1", gpus=2, grad_accum=1))
    assert reduced_bytes(of_trainer) == once
    eager = replace(
        of_trainer.scenario, stack=replace(of_trainer.scenario.stack, id="eager", fsdp_no_sync="neither")
    )
    assert reduced_bytes(job(eager)) == 4 * once


def test_adapters_that_are_units_of_fsdp1_make_the_host_wait() -> None:
    """Two units for each of seven matrices in 32 layers, in three passes;
    with FSDP2 they are part of their layer's.
    """
    held = mistral_job(
        sharding="fsdp1", gpus=2, lora_targets=["all-linear"], method="lora", gradient_checkpointing=True
    )
    unit = 3 * HOOKS_PER_UNIT * PRIORS.hook_s
    assert waiting_hook_seconds(held) == pytest.approx(2 * 7 * 32 * unit)
    assert hook_seconds(held) == pytest.approx((2 * 7 * 32 + 32) * unit)
    assert (
        waiting_hook_seconds(mistral_job(sharding="fsdp", gpus=2, method="lora", stack="hf-trainer@5")) == 0
    )
    hooks = term(predicted(held.scenario), "sharding_hooks")
    assert hooks.seconds - hooks.overlapped_s >= waiting_hook_seconds(held) * (1 - 1e-9)
