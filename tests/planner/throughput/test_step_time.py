"""Time: work counts by hand, traffic and collectives by hand, and how the terms add up to a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.anatomy.natural_lengths import longest_sample
from planner.catalog.gpus import load_gpu
from planner.catalog.hf_config import model_from_config
from planner.catalog.stacks import load_stack
from planner.domain.hardware import Hardware, HostSpec
from planner.domain.model import ModelSpec
from planner.domain.prediction import TimePrediction
from planner.domain.recipes.parallel import Parallel
from planner.domain.recipes.recipe import Adapter, Batch, Numerics, Recipe
from planner.domain.recipes.sample_lengths import Longest
from planner.domain.recipes.sharding import NONE, sharding_named
from planner.domain.scenario import RunPlan, Scenario
from planner.domain.term import TimeTerm
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.ops.work import FusedAttention
from planner.throughput.communication import (
    collective_seconds,
    gathered_bytes,
    reduced_bytes,
    replica_bytes,
    ring_fraction,
    second_copy_bytes,
    stored_param_bytes,
)
from planner.throughput.evaluation import run_evaluation_seconds
from planner.throughput.flop import attention_forward_macs, model_flop, products_flop
from planner.throughput.kernel_time import mean_keys
from planner.throughput.offload import cpu_adam_seconds, nvme_seconds, transfers
from planner.throughput.rates import accumulates_at_half_rate, intra_node_bytes_per_s, peak_flop_per_s
from planner.throughput.step_time import predict_time
from planner.throughput.terms import pass_seconds
from planner.throughput.time_inputs import TimedJob, job_of
from planner.units import GIGA, TERA

LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
# 32 x (4 x 4096^2 + 3 x 4096 x 11008), and 4096 x 32000.
BLOCK_WEIGHTS, HEAD_WEIGHTS = 6_476_005_376, 131_072_000
N = BLOCK_WEIGHTS + HEAD_WEIGHTS
PARAMS = 6_738_415_616
FIRST_QKV = 3 * 4096**2
# All seven matrices of a layer: in + out features, times 32 layers.
LORA_WIDTHS = 32 * (4 * 8192 + 3 * (4096 + 11008))
PRIORS = Coefficients()


@pytest.fixture(scope="module")
def llama() -> ModelSpec:
    """Llama-2-7B from its shapes."""
    return model_from_config(LLAMA_2_7B, "llama-2-7b")


def recipe(method: str = "full", **changes: object) -> Recipe:
    """A recipe with every choice written out; ``changes`` replace fields of the recipe."""
    adapter = Adapter(8, ("all-linear",), 0.05, (), "fp32", dora=False) if method == "lora" else None
    base = Recipe(
        method="lora" if method == "lora" else "full",
        numerics=Numerics("bf16", "bf16-mixed"),
        adapter=adapter,
        train_layers=(),
        optimizer="adamw_torch",
        sharding=NONE,
        offload="none",
        gradient_checkpointing=True,
        checkpoint_reentrant=True,
        checkpoint_every=1,
        checkpoint_policy="full",
        attention="flash2",
        loss="hf",
        batch=Batch(4, 2, 1024, "packed", 1024),
        task="sft",
    )
    if "sharding" in changes:
        changes["sharding"] = sharding_named(str(changes["sharding"]))
    return replace(base, **changes)


def scenario(model: ModelSpec, the_recipe: Recipe, gpu: str = "a100-80-sxm", **hardware: object) -> Scenario:
    """A scenario on ``gpu``; ``hardware`` replaces fields of one unknown host with one GPU."""
    base = Hardware(load_gpu(gpu), 1, 1, HostSpec("unknown"))
    return Scenario(model, replace(base, **hardware), the_recipe, load_stack("hf-trainer@5"))


def predicted(the_scenario: Scenario, coefficients: Coefficients = PRIORS) -> TimePrediction:
    """The prediction, which must exist."""
    answer = predict_time(the_scenario, coefficients)
    assert answer is not None
    return answer


def term(answer: TimePrediction, name: str) -> TimeTerm:
    """The one term of that name."""
    (found,) = [part for part in answer.terms if part.name == name]
    return found


def job(the_scenario: Scenario) -> TimedJob:
    """The job of a scenario, which must exist."""
    found = job_of(the_scenario, PRIORS)
    assert found is not None
    return found


class TestWork:
    """FLOP of Llama-2-7B for each token against a pocket calculator."""

    @pytest.mark.parametrize(
        ("method", "changes", "expected"),
        [
            ("full", {"gradient_checkpointing": False}, 6 * N),
            # Re-entrant checkpointing repeats the forward of the blocks; the head is outside.
            ("full", {}, 6 * N + 2 * BLOCK_WEIGHTS),
            # The down projection's output is needed by nothing, so it is not computed again.
            (
                "full",
                {"checkpoint_reentrant": False},
                6 * N + 2 * (BLOCK_WEIGHTS - 32 * 11008 * 4096),
            ),
            # No weight gradient of the base, and the first q, k and v return none.  An adapter costs
            # r (in + out) in each pass, but its first factor there returns none, too.
            (
                "lora",
                {"gradient_checkpointing": False},
                4 * N - 2 * FIRST_QKV + 2 * 8 * (3 * LORA_WIDTHS - 3 * 4096),
            ),
            # Recomputation adds one forward, and the first layer returns an input gradient.
            ("lora", {}, 4 * N + 2 * BLOCK_WEIGHTS + 2 * 8 * 4 * LORA_WIDTHS),
        ],
    )
    def test_products(self, llama: ModelSpec, method: str, changes: dict[str, bool], expected: int) -> None:
        """Forward 2N, input gradient 2N, weight gradient 2N."""
        assert all_flop(job(scenario(llama, recipe(method, **changes)))) == pytest.approx(4096 * expected)

    def test_attention_is_four_s_squared_d_over_two(self, llama: ModelSpec) -> None:
        """FlashAttention's count, halved by causality: 4 x s^2 x 4096 / 2 per layer, with the diagonal."""
        assert 2 * attention_forward_macs(llama, 2048) == 32 * 4 * 4096 * (2048 + 1) / 2

    def test_model_flop_counts_no_recomputation(self, llama: ModelSpec) -> None:
        """Utilisation is the same numerator with and without checkpointing: 6N and three attention passes."""
        plain, again = (job(scenario(llama, recipe(gradient_checkpointing=each))) for each in (False, True))
        expected = 4096 * (6 * N + 3 * 2 * attention_forward_macs(llama, 1024))
        assert model_flop(plain) == pytest.approx(expected)
        assert model_flop(again) == pytest.approx(expected)

    def test_window_counts_the_band(self) -> None:
        """Five tokens with a window of three meet 1, 2, 3, 3 and 3 keys."""
        kind = FusedAttention("flash", 1, "band", 3)
        assert mean_keys(kind, 5) == pytest.approx((1 + 2 + 3 + 3 + 3) / 5)
        assert mean_keys(kind, 2) == pytest.approx((1 + 2) / 2)

    def test_experts_count_what_a_token_passes(self) -> None:
        """Mixtral: two of eight experts of 3 x 4096 x 14336 weights per layer."""
        config = {
            **LLAMA_2_7B,
            "model_type": "mixtral",
            "num_key_value_heads": 32,
            "intermediate_size": 14336,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        }
        one = job(scenario(model_from_config(config, "mixtral"), recipe(gradient_checkpointing=False)))
        others = N - 32 * 3 * 4096 * 11008 + 32 * 4096 * 8
        assert all_flop(one) == pytest.approx(4096 * 6 * (others + 32 * 2 * 3 * 4096 * 14336))


def all_flop(held: TimedJob) -> float:
    """Products of a micro-step, recomputed ones too."""
    return float(products_flop(held, held.micro, "training", ("forward", "again", "backward")))


def longest_of(mean: float, cap: int, draws: int, variation: float) -> Longest:
    """The longest of samples of that mean, none above ``cap``."""
    batch = Batch(draws, 1, cap, "longest", mean)
    return longest_sample(batch, draws, variation, drops_long=False)


class TestTokens:
    """Padded lengths."""

    def test_one_sample_is_not_padded(self) -> None:
        """The longest of one is the mean."""
        assert longest_of(725.0, 1024, 1, 0.8).tokens == pytest.approx(725)

    def test_longest_grows_towards_the_cap(self) -> None:
        """More samples in a batch pad further, and never beyond the cap."""
        lengths = [longest_of(725.0, 1024, draws, 0.8).tokens for draws in (1, 2, 4, 8, 64, 4096)]
        assert lengths == sorted(lengths)
        assert lengths[-1] <= 1024

    def test_far_below_the_cap_the_spread_decides(self) -> None:
        """A cap far away does not pad short samples to it:
        two exponential draws of mean 100 have an expected longest of 150.
        """
        assert longest_of(100.0, 100_000, 2, 1.0).tokens == pytest.approx(150, rel=0.02)

    def test_full_samples_are_not_padded(self) -> None:
        """Where every sample reaches the cap, so does the batch."""
        assert longest_of(1024.0, 1024, 8, 0.8).tokens == 1024

    def test_padding_costs_time_and_counts_no_tokens(self, llama: ModelSpec) -> None:
        """Padded tokens are computed, but real tokens per second and model FLOP leave them out."""
        real = recipe("lora", batch=Batch(4, 1, 512, "packed", 512))
        padded = recipe("lora", batch=Batch(4, 1, 1024, "max_length", 512), attention="sdpa")
        short, wide = predicted(scenario(llama, real)), predicted(scenario(llama, padded))
        assert wide.step_s > 1.8 * short.step_s
        assert wide.padded_tokens_per_s == pytest.approx(2 * wide.tokens_per_s)
        assert wide.model_flop_per_step == short.model_flop_per_step


class TestRates:
    """What a card and its links sustain."""

    def test_geforce_halves_fp32_accumulation(self) -> None:
        """int8 runs at four times the 16-bit rate on GeForce, at twice on data-centre cards."""
        assert accumulates_at_half_rate(load_gpu("rtx4090"))
        assert accumulates_at_half_rate(load_gpu("rtx3090"))
        assert not accumulates_at_half_rate(load_gpu("a100-80-sxm"))
        assert not accumulates_at_half_rate(load_gpu("rtx-a6000"))

    def test_missing_units_fall_back_to_fp32(self) -> None:
        """bf16 on a T4 runs on the fp32 units."""
        t4 = load_gpu("t4")
        assert peak_flop_per_s(t4, "bf16") == t4.fp32_flop_per_s
        assert peak_flop_per_s(t4, "fp16") == 65 * TERA

    def test_unknown_rates_give_no_time(self, llama: ModelSpec) -> None:
        """The CPU entry has no rates: there is no prediction rather than a guess."""
        assert predict_time(scenario(llama, recipe(), gpu="cpu"), PRIORS) is None

    def test_links_by_hand(self) -> None:
        """Half of NVLink's two-way sum, one PCIe direction, and NCCL's assumption between sockets."""
        card, host = load_gpu("a100-80-sxm"), HostSpec("unknown")
        assert intra_node_bytes_per_s(Hardware(card, 8, 1, host), PRIORS) == pytest.approx(
            300 * GIGA * PRIORS.nvlink_efficiency
        )
        pcie = intra_node_bytes_per_s(Hardware(card, 8, 1, host, link="pcie"), PRIORS)
        assert pcie == pytest.approx(16 * 1.969 * GIGA * PRIORS.pcie_efficiency)
        assert intra_node_bytes_per_s(Hardware(card, 8, 1, host, link="qpi"), PRIORS) == 10 * GIGA

    def test_old_host_slows_the_link(self, llama: ModelSpec) -> None:
        """The slower of the two PCIe generations decides offload."""
        offloaded = recipe(sharding="zero3", offload="optimizer+params")
        new = predicted(scenario(llama, offloaded))
        old = predicted(scenario(llama, offloaded, host=HostSpec("old", pcie_generation=3)))
        assert term(old, "host_transfers").seconds == pytest.approx(
            2 * term(new, "host_transfers").seconds, rel=0.01
        )


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


class TestOffload:
    """Traffic and CPU time of offloaded state."""

    def test_zero_offload_bytes(self, llama: ModelSpec) -> None:
        """Each of four GPUs sends a quarter of the gradients in both micro-steps and gets its new weights
        once.
        """
        held = job(scenario(llama, recipe(sharding="zero2", offload="optimizer"), gpus_per_node=4))
        moved = transfers(held)
        assert moved.exposed == pytest.approx(3 * 2 * PARAMS / 4)
        assert moved.fetched == 0

    def test_offloaded_weights_are_fetched_twice_per_micro_step(self, llama: ModelSpec) -> None:
        """Forward and backward of both micro-steps read the host's share; new weights stay there."""
        held = job(scenario(llama, recipe(sharding="zero3", offload="optimizer+params"), gpus_per_node=4))
        moved = transfers(held)
        assert moved.fetched == pytest.approx(4 * 2 * PARAMS / 4)
        assert moved.exposed == pytest.approx(2 * 2 * PARAMS / 4)

    def test_cpu_update_is_shared_by_nodes_not_by_gpus(self, llama: ModelSpec) -> None:
        """All GPUs of a node share its cores; two nodes halve the work of each."""
        offloaded = recipe(sharding="zero3", offload="optimizer")
        one = cpu_adam_seconds(job(scenario(llama, offloaded, gpus_per_node=4)))
        two = cpu_adam_seconds(job(scenario(llama, offloaded, gpus_per_node=4, nodes=2)))
        assert one == pytest.approx(PARAMS / PRIORS.cpu_adam_params_per_s)
        assert two == pytest.approx(one / 2)

    def test_known_host_sets_the_rate(self, llama: ModelSpec) -> None:
        """Four slow cores, or narrow memory, limit the update; the smaller one decides."""
        offloaded = recipe(sharding="zero3", offload="optimizer")
        few_cores = HostSpec("small", cores=4, memory_bandwidth_bytes_per_s=300 * GIGA)
        narrow = HostSpec("narrow", cores=64, memory_bandwidth_bytes_per_s=30 * GIGA)
        slow = cpu_adam_seconds(job(scenario(llama, offloaded, host=few_cores)))
        assert slow == pytest.approx(PARAMS / (4 * PRIORS.cpu_adam_params_per_s_per_core))
        assert cpu_adam_seconds(job(scenario(llama, offloaded, host=narrow))) == pytest.approx(PARAMS / GIGA)

    def test_nvme_reads_and_writes_the_state(self, llama: ModelSpec) -> None:
        """12 bytes per parameter read and written once per step."""
        held = job(scenario(llama, recipe(sharding="zero3", offload="optimizer-nvme")))
        assert nvme_seconds(held) == pytest.approx(24 * PARAMS / PRIORS.nvme_bytes_per_s)

    def test_offloaded_activations_travel_both_ways(self, llama: ModelSpec) -> None:
        """With checkpointing each layer's bf16 input leaves and returns:
        2 x 2 x 32 x 4096 bytes per token.
        """
        held = job(scenario(llama, recipe(offload="activations", numerics=Numerics("bf16", "bf16"))))
        assert transfers(held).fetched == 2 * 2 * 2 * 32 * 4096 * 4 * 1024


class TestTraffic:
    """Bytes of kernels that are not products."""

    def test_fused_kernels_move_less(self, llama: ModelSpec) -> None:
        """A stack with fused norms and activations spends less on elementwise traffic,
        and issues fewer operators.
        """
        plain = scenario(llama, recipe())
        fused = replace(plain, stack=replace(plain.stack, fused_norm=True, fused_mlp=True))
        assert (
            term(predicted(fused), "elementwise").seconds
            < 0.7 * term(predicted(plain), "elementwise").seconds
        )
        assert term(predicted(fused), "launch").seconds < term(predicted(plain), "launch").seconds

    def test_operators_of_a_llama_layer(self, llama: ModelSpec) -> None:
        """38 operators forward and about 71 backward,
        as TorchDispatchMode counts them with autograd's own sums.
        """
        plain = scenario(llama, recipe(numerics=Numerics("bf16", "bf16"), gradient_checkpointing=False))
        deeper = replace(plain, model=replace(llama, groups=(replace(llama.groups[0], count=33),)))
        one_more = [pass_seconds(job(each), "training")["launches"] for each in (plain, deeper)]
        assert one_more[1] - one_more[0] == pytest.approx(38 + 71, abs=4)

    def test_dequantisation_by_hand(self, llama: ModelSpec) -> None:
        """4-bit weights are expanded forward, when checkpointing runs a layer again, and backward.

        Half a byte is read and two are written.  The last matrix of a layer is not expanded again:
        nothing saves what it returns.
        """
        small = recipe(
            "lora", numerics=Numerics("bf16", "bf16-mixed", "nf4"), batch=Batch(1, 1, 1024, "packed", 1024)
        )
        made, plain = (
            scenario(llama, replace(small, gradient_checkpointing=again)) for again in (True, False)
        )
        often, once = (term(predicted(each), "dequantization").seconds for each in (made, plain))
        rate = job(made).rates.memory_bytes_per_s
        last = 32 * 4096 * 11008
        assert often == pytest.approx(2.5 * (3 * BLOCK_WEIGHTS - last * (not small.adapter)) / rate, rel=0.03)
        assert once == pytest.approx(2.5 * 2 * BLOCK_WEIGHTS / rate, rel=0.03)

    def test_int8_backward_runs_in_fp32_after_kbit_preparation(self, llama: ModelSpec) -> None:
        """Norms that k-bit preparation upcasts feed int8 matrices fp32,
        whose input gradient then has no tensor cores.
        """
        int8 = recipe("lora", numerics=Numerics("bf16", "bf16-mixed", "int8"))
        upcast = scenario(llama, int8)
        plain = replace(upcast, stack=replace(upcast.stack, kbit_upcast="none"))
        assert term(predicted(upcast), "matmul").seconds > 2 * term(predicted(plain), "matmul").seconds

    def test_eager_attention_costs_more_and_grows_faster(self, llama: ModelSpec) -> None:
        """Scores that are written out cost a multiple of the fused kernel at 4,096 tokens."""
        long = Batch(1, 1, 4096, "packed", 4096)
        fused = term(predicted(scenario(llama, recipe(batch=long))), "attention").seconds
        eager = term(predicted(scenario(llama, recipe(batch=long, attention="eager"))), "attention").seconds
        assert eager > 4 * fused


class TestStep:
    """How the terms make a step."""

    def test_step_is_the_sum_of_what_shows(self, llama: ModelSpec) -> None:
        """Seconds less what hides behind others; nothing hides more than it lasts."""
        answer = predicted(
            scenario(llama, recipe(sharding="zero3", offload="optimizer+params"), gpus_per_node=4)
        )
        assert answer.step_s == pytest.approx(sum(part.seconds - part.overlapped_s for part in answer.terms))
        assert all(0 <= part.overlapped_s <= part.seconds for part in answer.terms)

    def test_every_term_names_its_formula_and_numbers(self, llama: ModelSpec) -> None:
        """Each formula reference can be imported, and each term shows the numbers behind it."""
        import importlib

        for the_recipe in (
            recipe(sharding="zero3", offload="optimizer+params-nvme"),
            recipe("lora", sharding="ddp"),
        ):
            answer = predict_time(scenario(llama, the_recipe, gpus_per_node=2), PRIORS, explain=True)
            assert answer is not None
            for part in answer.terms:
                module, function = part.formula.split(":")
                assert callable(getattr(importlib.import_module(module), function))
                assert any(character.isdigit() for character in part.detail)

    def test_tiny_batches_wait_for_the_host(self, llama: ModelSpec) -> None:
        """At 16 tokens the operators take longer to issue than to run:
        the step is the launch time and the update.
        """
        answer = predicted(scenario(llama, recipe("lora", batch=Batch(1, 1, 16, "packed", 16))))
        launch = term(answer, "launch")
        assert launch.overlapped_s < launch.seconds
        assert answer.step_s == pytest.approx(launch.seconds + term(answer, "optimizer_step").seconds)

    def test_large_batches_hide_the_host(self, llama: ModelSpec) -> None:
        """At 16,384 tokens the launch time is hidden whole."""
        launch = term(predicted(scenario(llama, recipe(batch=Batch(4, 1, 4096, "packed", 4096)))), "launch")
        assert launch.overlapped_s == launch.seconds

    def test_utilisation_is_below_the_sustained_rate(self, llama: ModelSpec) -> None:
        """Without recomputation a large full fine-tune nears the efficiency of products,
        with it to three quarters of that.
        """
        plain = recipe(gradient_checkpointing=False, batch=Batch(8, 1, 2048, "packed", 2048))
        without = predicted(scenario(llama, plain)).mfu
        with_it = predicted(scenario(llama, replace(plain, gradient_checkpointing=True))).mfu
        assert with_it is not None
        assert without is not None
        assert 0.4 < with_it < without < PRIORS.matmul_efficiency
        assert with_it / without == pytest.approx(0.75, abs=0.04)

    def test_run_time_and_cost(self, llama: ModelSpec) -> None:
        """Samples and epochs over samples per second; the price is per GPU and hour."""
        run = RunPlan(n_samples=1000, epochs=2.0, usd_per_gpu_hour=3.0)
        answer = predicted(replace(scenario(llama, recipe(sharding="ddp"), gpus_per_node=4), run=run))
        assert answer.run_time_s == pytest.approx(2000 / answer.samples_per_s)
        assert answer.cost_usd == pytest.approx(4 * 3.0 * answer.run_time_s / 3600)
        assert predicted(scenario(llama, recipe())).run_time_s is None

    def test_evaluation_adds_forward_passes_to_the_run(self, llama: ModelSpec) -> None:
        """Each epoch ends with whole evaluation steps on all GPUs; a step is a forward pass,
        a good third of a training step.
        """
        batch = Batch(4, 1, 2048, "packed", 2048)
        case = scenario(
            llama, recipe(sharding="ddp", batch=batch, gradient_checkpointing=False), gpus_per_node=2
        )
        plain, twice = RunPlan(1000, 2.0), RunPlan(1000, 2.0, eval_samples=100, eval_micro_batch=4)
        added = (
            predicted(replace(case, run=twice)).run_time_s - predicted(replace(case, run=plain)).run_time_s
        )
        steps = 2 * 13
        assert added / steps == pytest.approx(predicted(case).step_s / 3, rel=0.15)

    def test_evaluation_brings_sharded_weights_in_once_a_step(self, llama: ModelSpec) -> None:
        """Under ZeRO-3 with offloaded weights,
        one sample at a time takes as long as moving all weights to each GPU.
        """
        sharded = recipe(sharding="zero3", offload="optimizer+params")
        case = scenario(llama, sharded, gpus_per_node=2)
        job = job_of(replace(case, run=RunPlan(1000, eval_samples=2, eval_micro_batch=1)), PRIORS)
        assert job is not None
        moved_s = stored_param_bytes(job) / 2 / job.rates.host_link_bytes_per_s
        assert run_evaluation_seconds(job) > moved_s
        whole = predicted(replace(case, run=RunPlan(1000, eval_samples=200, eval_micro_batch=1)))
        assert whole.run_time_s == pytest.approx(
            1000 / whole.samples_per_s + 100 * run_evaluation_seconds(job)
        )

    def test_more_work_never_takes_less_time(self, llama: ModelSpec) -> None:
        """Batch, length, rank and micro-steps only lengthen a step."""
        batch = Batch(2, 2, 512, "packed", 512)
        base = predicted(scenario(llama, recipe("lora", batch=batch))).step_s
        for field, value in (("micro_batch", 3), ("seq_len", 640), ("grad_accum", 3)):
            assert (
                predicted(scenario(llama, recipe("lora", batch=replace(batch, **{field: value})))).step_s
                > base
            )
        wide = Adapter(64, ("all-linear",), 0.05, (), "fp32", dora=False)
        assert predicted(scenario(llama, recipe("lora", batch=batch, adapter=wide))).step_s > base


GRID_RECIPES = {
    "full-zero3-offload": recipe(sharding="zero3", offload="optimizer+params"),
    "full-zero2-eager": recipe(sharding="zero2", attention="eager"),
    "lora-ddp-longest": recipe("lora", sharding="ddp", attention="sdpa"),
    "qlora-fsdp": recipe(
        "lora", sharding="fsdp", numerics=Numerics("bf16", "bf16-mixed", "nf4", double_quant=True)
    ),
    "int8": recipe("lora", sharding="ddp", numerics=Numerics("bf16", "bf16-mixed", "int8")),
    "nvme-activations": recipe(sharding="zero3", offload="params-nvme", attention="sdpa"),
}


@pytest.mark.parametrize("name", GRID_RECIPES)
def test_a_grid_equals_its_points(name: str, llama: ModelSpec) -> None:
    """One call on broadcast arrays gives what one call per point gives."""
    base = GRID_RECIPES[name]
    padding = "longest" if name == "lora-ddp-longest" else "packed"
    batches, lengths, ranks, gpus = (1, 3, 8), (64, 700, 4096), (8, 64), (1, 2, 8)
    axes = np.ix_(*(np.array(axis, dtype=float) for axis in (batches, lengths, ranks, gpus)))
    grid = predicted(_at(llama, base, padding, axes))
    for index in np.ndindex(3, 3, 2, 3):
        point = (batches[index[0]], lengths[index[1]], ranks[index[2]], gpus[index[3]])
        one = predicted(_at(llama, base, padding, point))
        for field in ("step_s", "samples_per_s", "tokens_per_s", "model_flop_per_step", "mfu"):
            values = np.broadcast_to(getattr(grid, field), (3, 3, 2, 3))
            assert values[index] == pytest.approx(getattr(one, field), rel=1e-9), (field, point)


def _at(llama: ModelSpec, base: Recipe, padding: str, numbers: tuple[object, ...]) -> Scenario:
    batch, length, rank, gpus = numbers
    adapter = replace(base.adapter, rank=rank) if base.adapter else None
    changed = replace(base, adapter=adapter, batch=Batch(batch, 2, length, padding, 500))
    return scenario(llama, changed, gpus_per_node=gpus)


class TestStackKernels:
    """Switches of a stack that change how fast the same recipe runs."""

    def test_products_pay_for_writing_their_outputs(self, llama: ModelSpec) -> None:
        """A layer writes 2 bytes for each output forward (7 matrices) and each input backward,
        beside the arithmetic.
        """
        plain = recipe(numerics=Numerics("bf16", "bf16"), gradient_checkpointing=False)
        held = job(scenario(llama, plain))
        forward, backward = 5 * 4096 + 2 * 11008, 6 * 4096 + 11008
        of_head, of_weights = 32000 + 4096, BLOCK_WEIGHTS + HEAD_WEIGHTS
        moved = 2 * ((32 * (forward + backward) + of_head) * held.micro.computed + of_weights)
        flop = all_flop(held)
        written = pass_seconds(held, "training")["matmul"] - flop / held.rates.matmul_flop_per_s * (
            1 + PRIORS.tile_rows / held.micro.computed
        )
        assert written == pytest.approx(moved / held.rates.memory_bytes_per_s, rel=0.01)

    def test_narrow_models_reach_less_of_the_peak(self, llama: ModelSpec) -> None:
        """With a quarter of the width, products have a quarter of the arithmetic to pay for each output."""
        narrow = model_from_config(LLAMA_2_7B | {"hidden_size": 1024, "intermediate_size": 2752}, "narrow")
        shares = []
        for model in (llama, narrow):
            held = job(scenario(model, recipe()))
            shares.append(all_flop(held) / pass_seconds(held, "training")["matmul"])
        assert shares[1] < 0.95 * shares[0]

    def test_the_first_flash_attention_is_slower(self, llama: ModelSpec) -> None:
        """Kernels of the first generation sustain their own share of the peak."""
        second = scenario(llama, recipe())
        first = replace(second, stack=replace(second.stack, id="old-kernels", flash_generation=1))
        ratio = term(predicted(first), "attention").seconds / term(predicted(second), "attention").seconds
        assert ratio == pytest.approx(PRIORS.attention_efficiency / PRIORS.attention_efficiency_flash1)

    def test_sorted_batches_are_not_padded(self, llama: ModelSpec) -> None:
        """Samples of like length in a batch leave next to nothing to pad."""
        mixed = scenario(llama, recipe(batch=Batch(4, 1, 1024, "longest", 300)))
        alike = replace(mixed, stack=replace(mixed.stack, id="sorting", sorts_lengths=True))
        assert job(alike).micro.computed == job(alike).micro.real == 4 * 300
        assert job(mixed).micro.computed > 1.2 * 4 * 300
