"""How the terms add up to a step and to a run, on one point and on a grid."""

from __future__ import annotations

import importlib
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from planner.domain.model import ModelSpec
from planner.domain.prediction import TimePrediction
from planner.domain.recipes.recipe import Adapter, Batch, Numerics, Recipe
from planner.domain.scenario import RunPlan, Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.throughput.step_time import predict_time
from tests.jobs import resolved, typed
from tests.planner.throughput.jobs import PRIORS, job, predicted, recipe, scenario, term


def test_padding_costs_time_and_counts_no_tokens(llama: ModelSpec) -> None:
    """Padded tokens are computed, but real tokens per second and model FLOP leave them out."""
    real = recipe("lora", batch=Batch(4, 1, 512, "packed", 512))
    padded = recipe("lora", batch=Batch(4, 1, 1024, "max_length", 512), attention="sdpa")
    short, wide = predicted(scenario(llama, real)), predicted(scenario(llama, padded))
    assert wide.step_s > 1.8 * short.step_s
    assert wide.padded_tokens_per_s == pytest.approx(2 * wide.tokens_per_s)
    assert wide.model_flop_per_step == short.model_flop_per_step


def test_unknown_rates_give_no_time(llama: ModelSpec) -> None:
    """The CPU entry has no rates: there is no prediction rather than a guess."""
    assert predict_time(scenario(llama, recipe(), gpu="cpu"), PRIORS) is None


def test_step_is_the_sum_of_what_shows(llama: ModelSpec) -> None:
    """Seconds less what hides behind others; nothing hides more than it lasts."""
    answer = predicted(scenario(llama, recipe(sharding="zero3", offload="optimizer+params"), gpus_per_node=4))
    assert answer.step_s == pytest.approx(sum(part.seconds - part.overlapped_s for part in answer.terms))
    assert all(0 <= part.overlapped_s <= part.seconds for part in answer.terms)


def test_every_term_names_its_formula_and_numbers(llama: ModelSpec) -> None:
    """Each formula reference can be imported, and each term shows the numbers behind it."""
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


@pytest.mark.parametrize("sharding", ["zero3", "fsdp"])
def test_a_step_that_waits_for_the_host_is_no_longer_on_a_faster_card(sharding: str) -> None:
    """Collectives run on while kernels wait to be issued: no second is missed twice."""
    flags = {"model": "7b", "method": "lora", "gpus": "2", "nodes": "2", "sharding": sharding, "seq": "128"}
    base = resolved({**flags, "gpu": "h100-sxm"})
    gpu = base.hardware.gpu
    rates = {
        name: getattr(gpu, name)
        for name in ("bf16_flop_per_s", "fp32_flop_per_s", "memory_bandwidth_bytes_per_s")
    }
    steps = []
    for times in (1.0, 1.5, 2.0, 4.0, 8.0):
        card = replace(gpu, **{name: rate * times for name, rate in rates.items() if rate})
        steps.append(float(predicted(replace(base, hardware=replace(base.hardware, gpu=card))).step_s))
    assert all(faster <= slower * (1 + 1e-9) for slower, faster in pairwise(steps))


def test_tiny_batches_wait_for_the_host(llama: ModelSpec) -> None:
    """At 16 tokens the operators take longer to issue than to run:
    the step is the launch time, the walks through modules and the update.
    """
    answer = predicted(scenario(llama, recipe("lora", batch=Batch(1, 1, 16, "packed", 16))))
    launch = term(answer, "launch")
    assert launch.overlapped_s < launch.seconds
    rest = term(answer, "module_walks").seconds + term(answer, "optimizer_step").seconds
    update = term(answer, "update_launch")
    rest += update.seconds - update.overlapped_s
    assert answer.step_s == pytest.approx(launch.seconds + rest)


def test_large_batches_hide_the_host(llama: ModelSpec) -> None:
    """At 16,384 tokens the launch time is hidden whole."""
    launch = term(predicted(scenario(llama, recipe(batch=Batch(4, 1, 4096, "packed", 4096)))), "launch")
    assert launch.overlapped_s == launch.seconds


def test_utilisation_is_below_the_sustained_rate(llama: ModelSpec) -> None:
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


def test_run_time_and_cost(llama: ModelSpec) -> None:
    """Samples and epochs over samples per second; the price is per GPU and hour."""
    run = RunPlan(n_samples=1000, epochs=2.0, usd_per_gpu_hour=3.0)
    answer = predicted(replace(scenario(llama, recipe(sharding="ddp"), gpus_per_node=4), run=run))
    assert answer.run_time_s == pytest.approx(2000 / answer.samples_per_s)
    assert answer.cost_usd == pytest.approx(4 * 3.0 * answer.run_time_s / 3600)
    assert predicted(scenario(llama, recipe())).run_time_s is None


def test_more_work_never_takes_less_time(llama: ModelSpec) -> None:
    """Batch, length, rank and micro-steps only lengthen a step."""
    batch = Batch(2, 2, 512, "packed", 512)
    base = predicted(scenario(llama, recipe("lora", batch=batch))).step_s
    for field, value in (("micro_batch", 3), ("seq_len", 640), ("grad_accum", 3)):
        assert (
            predicted(scenario(llama, recipe("lora", batch=replace(batch, **{field: value})))).step_s > base
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


def test_sorted_batches_are_not_padded(llama: ModelSpec) -> None:
    """Samples of like length in a batch leave next to nothing to pad."""
    mixed = scenario(llama, recipe(batch=Batch(4, 1, 1024, "longest", 300)))
    alike = replace(mixed, stack=replace(mixed.stack, id="sorting", sorts_lengths=True))
    assert job(alike).micro.computed == job(alike).micro.real == 4 * 300
    assert job(mixed).micro.computed > 1.2 * 4 * 300


JOB = typed(
    "--model llama-2-7b --method full --gpu h100-sxm --seq 2048 --stack llama-factory --load-dtype bf16"
)


# Without recomputation a step is one forward pass and a backward one of twice its products.
KEPT = {"gradient_checkpointing": False, "precision": "bf16"}


def step_of(**flags: Any) -> TimePrediction:
    """The time of one step."""
    predicted = predict_time(resolved({**JOB, **KEPT, **flags}, force=True), Coefficients(), explain=True)
    assert predicted is not None
    return predicted


def test_a_pair_takes_as_long_as_two_samples() -> None:
    """ORPO and supervised fine-tuning have the same products and as many logits."""
    pair, two = step_of(task="orpo", batch=1), step_of(task="sft", batch=2, padding="longest")
    assert pair.step_s == pytest.approx(two.step_s, rel=0.01)
    assert pair.samples_per_s == pytest.approx(two.samples_per_s / 2, rel=0.01)
    assert pair.tokens_per_s == pytest.approx(two.tokens_per_s, rel=0.01)


@pytest.mark.parametrize(("task", "rows", "passes"), [("dpo", 2, 1), ("kto", 1, 3)])
def test_each_pass_of_a_reference_adds_a_forward_pass(task: str, rows: int, passes: int) -> None:
    """It is a third of the training pass without recomputation, and as much of what the model needs."""
    with_passes, without = step_of(task=task, batch=4), step_of(task="sft", batch=4 * rows, padding="longest")
    aside = next(term for term in with_passes.terms if term.name == "passes_aside")
    assert aside.seconds / passes == pytest.approx(without.step_s / 3, rel=0.15)
    assert f"{passes} forward passes" in aside.detail
    needed = with_passes.model_flop_per_step / without.model_flop_per_step
    assert needed == pytest.approx(1 + passes / 3, rel=0.01)
    assert "passes_aside" not in {term.name for term in without.terms}


def test_compared_logits_add_a_forward_pass() -> None:
    """The second model runs once in each micro-step of next tokens."""
    plain, compared = (
        step_of(task="sft", method="full", batch=4, padding="longest", switches=switches)
        for switches in (("loss_weights=none",), ("loss_weights=divergence",))
    )
    aside = next(term for term in compared.terms if term.name == "passes_aside")
    assert aside.seconds == pytest.approx(plain.step_s / 3, rel=0.15)
    assert compared.model_flop_per_step / plain.model_flop_per_step == pytest.approx(1 + 1 / 3, rel=0.01)


def test_four_bit_weights_are_expanded_for_each_pass() -> None:
    """The same job over an nf4 base takes longer in its pass aside, by one expansion of all weights."""
    plain, packed = (
        step_of(task="dpo", method=method, precision="bf16-mixed") for method in ("lora", "qlora")
    )
    seconds = [
        next(each.seconds for each in time.terms if each.name == "passes_aside") for time in (plain, packed)
    ]
    expanded = next(each.seconds for each in packed.terms if each.name == "dequantization")
    assert seconds[1] - seconds[0] == pytest.approx(expanded / 2, rel=0.3)


def test_a_reward_model_has_no_logits_of_words() -> None:
    """Its head has one output, so that the last norm is all that it takes long for."""
    reward = step_of(task="reward", stack="trl")
    logits = next(term.seconds for term in reward.terms if term.name == "logits_and_loss")
    assert logits < 0.005 * reward.step_s


def test_an_evaluation_runs_the_reference_too() -> None:
    """Each evaluation step of DPO runs two passes; ORPO's one has a cross-entropy, too."""
    extra = {"samples": 1000, "eval_samples": 800, "eval_batch": 4, "batch": 4}

    def evaluated_s(task: str) -> float:
        times = [step_of(task=task, **given).run_time_s for given in (extra, {**extra, "eval_samples": 8})]
        assert times[0] is not None
        assert times[1] is not None
        return float(times[0] - times[1])

    assert evaluated_s("dpo") == pytest.approx(2 * evaluated_s("orpo"), rel=0.05)
