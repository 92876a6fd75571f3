"""Seconds of a pass by term: products, attention, traffic, and what a stack or a tower adds to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.stacks import load_stack
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Batch, Numerics
from planner.program.ops.tensors import Unit
from planner.throughput.flop import model_flop
from planner.throughput.terms import pass_seconds, tower_seconds
from planner.throughput.time_inputs import TimedJob
from tests.jobs import resolved
from tests.planner.small_tower import JOB, PATCHES, written
from tests.planner.throughput.jobs import (
    BLOCK_WEIGHTS,
    HEAD_WEIGHTS,
    LLAMA_2_7B,
    PRIORS,
    all_flop,
    job,
    mistral_job,
    predicted,
    recipe,
    scenario,
    term,
)


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
        starts = 3 * 7 * 32 * PRIORS.kernel_s
        moved = 2.5 * (3 * BLOCK_WEIGHTS - last * (not small.adapter)) / rate
        assert often == pytest.approx(moved + starts, rel=0.03)
        assert once == pytest.approx(2.5 * 2 * BLOCK_WEIGHTS / rate + 2 / 3 * starts, rel=0.03)

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


def test_products_pay_for_writing_their_outputs(llama: ModelSpec) -> None:
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


def test_narrow_models_reach_less_of_the_peak(llama: ModelSpec) -> None:
    """With a quarter of the width, products have a quarter of the arithmetic to pay for each output."""
    narrow = model_from_config(LLAMA_2_7B | {"hidden_size": 1024, "intermediate_size": 2752}, "narrow")
    shares = []
    for model in (llama, narrow):
        held = job(scenario(model, recipe()))
        shares.append(all_flop(held) / pass_seconds(held, "training")["matmul"])
    assert shares[1] < 0.95 * shares[0]


def test_the_first_flash_attention_is_slower(llama: ModelSpec) -> None:
    """Kernels of the first generation sustain their own share of the peak."""
    second = scenario(llama, recipe())
    first = replace(second, stack=replace(second.stack, id="old-kernels", flash_generation=1))
    ratio = term(predicted(first), "attention").seconds / term(predicted(second), "attention").seconds
    assert ratio == pytest.approx(PRIORS.attention_efficiency / PRIORS.attention_efficiency_flash1)


def test_4_bit_matrices_cast_what_they_are_given_and_what_they_return() -> None:
    """Fp32 norms: 6 bytes for inputs of query, key, value, gate, up and down, their outputs,
    and what attention reads.
    """
    held = mistral_job(load_dtype="bf16", precision="bf16-mixed")
    spared = replace(held.scenario, stack=replace(held.scenario.stack, id="spared", kbit_upcast="none"))
    narrow = job(spared)
    inputs, outputs, attended = 5 * 4096 + 14336, (4096 + 2 * 1024) + 2 * 14336 + 4096, 4096 + 2 * 1024
    casts = 6 * (inputs + outputs + attended) * 32
    wide, thin = (
        pass_seconds(each, "training")["elementwise"] * each.rates.memory_bytes_per_s
        for each in (held, narrow)
    )
    # Forward, recomputation and backward, beside the norms that read fp32.
    more = (wide - thin) / held.micro.computed
    assert 3 * casts < more
    assert casts > 0.15 * more


def test_experts_one_after_another_issue_their_own_products() -> None:
    """Transformers 4 runs eight experts of three matrices,
    and asks the GPU each time which tokens are theirs.
    """
    mixtral = {"model": "mixtral-8x7b", "method": "lora"}
    apart, joined = mistral_job(**mixtral), mistral_job(**mixtral, stack="hf-trainer@5")
    one_by_one, at_once = (pass_seconds(each, "training") for each in (apart, joined))
    assert one_by_one["launches"] - at_once["launches"] > 32 * 8 * 3
    assert one_by_one["waits"] > 2 * 32 * 8 * 3
    assert "waits" not in at_once


def test_without_autocast_what_preparation_widened_runs_in_fp32() -> None:
    """On a T4 that is an eighth of the rate: the head, attention and adapters."""
    flags = {"gpu": "t4", "stack": "plain-torch", "attention": "sdpa", "load_dtype": "fp16"}
    # Heads in groups have no fused kernel there in either precision.
    flags["switches"] = "copies_kv_heads=repeated"
    wide, mixed = mistral_job(**flags, precision="fp16"), mistral_job(**flags, precision="fp16-mixed")
    assert load_stack("plain-torch").kbit_upcast == "all"
    assert wide.regime.is_wide
    assert not mixed.regime.is_wide
    assert (
        term(predicted(wide.scenario), "attention").seconds
        > 6 * term(predicted(mixed.scenario), "attention").seconds
    )
    assert (
        term(predicted(wide.scenario), "matmul").seconds > term(predicted(mixed.scenario), "matmul").seconds
    )


OWN: dict[str, object] = {"stack": "hf-trainer@4", "freeze": "vision_tower;projector"}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The path of a small Qwen2.5-VL."""
    return written(tmp_path)


def seeing_job(model: str, **said: object) -> TimedJob:
    """A job with one image of 24 x 36 patches, whose tower is frozen."""
    return job(resolved({**JOB, **OWN, "model": model, **said}, force=True))


def tower_flop(model: str, **said: object) -> float:
    """What an image adds to the arithmetic of a job."""
    seen, text = (seeing_job(model, **said, images_per_sample=number) for number in (1, 0))
    return float(model_flop(seen) - model_flop(text))


def test_the_forward_pass_of_a_frozen_tower_is_counted_by_hand(model: str) -> None:
    """Patches, three layers of six matrices, a merger over four patches at once;
    windows of 64 patches and the whole image.
    """
    layer = 4 * 160 * 160 + 3 * 160 * 400
    products = 3 * 2 * 14 * 14 * 160 + 3 * layer + (640 * 640 + 640 * 128) / 4
    keys = 2 * 64 + PATCHES
    assert tower_flop(model) == pytest.approx(2 * PATCHES * (products + 2 * 160 * keys))


def test_a_tower_that_is_trained_takes_longer(model: str) -> None:
    """Backward is twice the forward pass in products, and its launches add."""
    frozen = seeing_job(model)
    said = {"method": "full", "freeze": "projector", "stack": "hf-trainer@5"}
    trained = seeing_job(model, **said)
    assert 2.5 * tower_flop(model) < tower_flop(model, **said) < 3.1 * tower_flop(model)
    assert tower_seconds(trained) > 2 * tower_seconds(frozen)
    assert pass_seconds(trained, "training")["launches"] > pass_seconds(frozen, "training")["launches"]


def test_no_image_no_time(model: str) -> None:
    """Text alone leaves the tower where it is."""
    assert tower_seconds(seeing_job(model, images_per_sample=0)) == 0


def test_liger_casts_a_frozen_head_twice_for_each_piece(llama: ModelSpec) -> None:
    """4,096 tokens in pieces of 512, as 32,000 words are eight times 4,096 features; a head and loss apart
    cast the head once.
    """
    wide = Numerics("fp32", "bf16-mixed")
    apart, fused = (
        job(scenario(llama, recipe("lora", numerics=wide, loss=loss))) for loss in ("hf", "liger")
    )
    more = pass_seconds(fused, "training")["weight_casts"] - pass_seconds(apart, "training")["weight_casts"]
    copies, n_bytes = 2 * 8 - 1, HEAD_WEIGHTS * (4 + 2)
    # The casts of pieces start beside the loss, the one of a head apart among casts.
    assert more == pytest.approx(copies * n_bytes / fused.rates.memory_bytes_per_s - PRIORS.kernel_s)


def test_liger_reads_the_head_for_each_piece(llama: ModelSpec) -> None:
    """512 tokens in pieces of 64, too few to hide the reading of the head behind their arithmetic."""
    few = recipe("lora", loss="liger", batch=Batch(1, 1, 512, "packed", 512))
    held = job(scenario(llama, few))
    assert held.values[Unit.PIECES] == 8
    apart = job(scenario(llama, replace(few, loss="hf")))
    more = pass_seconds(held, "training")["matmul"] - pass_seconds(apart, "training")["matmul"]
    once = 2 * 512 * HEAD_WEIGHTS / held.rates.matmul_flop_per_s
    read = 8 * 2 * HEAD_WEIGHTS / held.rates.memory_bytes_per_s
    assert read > once
    logits = 512 * 32_000 * 2 / held.rates.memory_bytes_per_s
    assert more == pytest.approx(2 * (read - once * (1 + PRIORS.tile_rows / 512)) + logits)
