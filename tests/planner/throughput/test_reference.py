"""Training from preferences: pairs are two sequences, and passes of the reference take their time."""

from __future__ import annotations

from typing import Any

import pytest

from planner.domain.prediction import TimePrediction
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.throughput.step_time import predict_time

JOB = {
    "model": "llama-2-7b",
    "method": "full",
    "gpu": "h100-sxm",
    "seq": 2048,
    "stack": "llama-factory",
    "load_dtype": "bf16",
}
# Without recomputation a step is one forward pass and a backward one of twice its products.
KEPT = {"gradient_checkpointing": False, "precision": "bf16"}


def step_of(**flags: Any) -> TimePrediction:
    """The time of one step."""
    predicted = predict_time(
        resolve(from_flags({**JOB, **KEPT, **flags}), force=True), Coefficients(), explain=True
    )
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
