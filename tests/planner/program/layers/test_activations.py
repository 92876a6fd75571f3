"""Activations that Python code spells out, over 128 features in bf16."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from planner.domain.model import MlpSpec
from planner.program.layers.activations import activation, clamped, clamped_gate
from tests.planner.program.layer_views import PLAIN, WIDTH, layer_of
from tests.planner.program.matrix_runs import Run

ONE = WIDTH * 2


def test_the_clamped_gate_keeps_four_tensors_beside_its_input() -> None:
    """Clamped gate, sigmoid, their product, and the clamped other half plus one."""
    run = Run(lambda torch, x: clamped_gate(torch, torch.same(x, "mul")), "bf16", 2 * WIDTH)

    assert run.kept == Counter(
        {
            ("mul", "TOKENS", 2 * ONE): 1,
            ("clamp", "TOKENS", ONE): 1,
            ("sigmoid", "TOKENS", ONE): 1,
            ("mul", "TOKENS", ONE): 1,
            ("add", "TOKENS", ONE): 1,
        }
    )


def test_clamps_compare_with_each_limit_in_backward() -> None:
    """The gate has one limit, the other half two: a byte for each feature and limit."""
    run = Run(lambda torch, x: clamped_gate(torch, torch.same(x, "mul")), "bf16", 2 * WIDTH)

    assert run.made("backward").count(("le", "TOKENS", WIDTH)) == 3


def test_the_derivative_of_blooms_activation_has_five_tensors_at_once() -> None:
    """Only the input is saved.  Then tanh, half the input, 1 - tanh squared,
    a product with the input and one more of it.
    """
    view = layer_of("lora", MlpSpec(WIDTH, gated=False, activation="bloom_gelu"), PLAIN)

    run = Run(lambda torch, x: activation(torch, view, torch.same(x, "mul")), "bf16", WIDTH)

    assert run.kept == Counter({("mul", "TOKENS", ONE): 1})
    backward = run.torch.stages["backward"]
    made = {event for event in backward if event >= 0}
    assert max(accumulate((event in made) - (~event in made) for event in backward)) == 5


def test_relu_saves_what_it_returns_and_silu_what_it_reads() -> None:
    """One tensor either way."""
    relu, silu = (
        layer_of("lora", MlpSpec(WIDTH, gated=False, activation=name), PLAIN) for name in ("relu", "silu")
    )

    runs = [
        Run(lambda torch, x, v=view: activation(torch, v, torch.same(x, "mul")), "bf16", WIDTH)
        for view in (relu, silu)
    ]  # type: ignore[misc]

    assert runs[0].kept == Counter({("relu", "TOKENS", ONE): 1})
    assert runs[1].kept == Counter({("mul", "TOKENS", ONE): 1})


def test_a_clamp_in_place_keeps_a_copy_of_its_input() -> None:
    """The result takes the place of the input, so that backward needs another copy."""
    run = Run(lambda torch, x: clamped(torch, torch.same(x, "mul")), "bf16", WIDTH)

    assert run.kept == Counter({("clone", "TOKENS", ONE): 1})


def test_a_squared_relu_keeps_its_relu() -> None:
    """``relu`` saves its output, which is what the square needs too."""
    view = layer_of("lora", MlpSpec(WIDTH, gated=False, activation="relu2"), PLAIN)
    run = Run(lambda torch, x: activation(torch, view, torch.same(x, "mul")), "bf16", WIDTH)

    assert run.kept == Counter({("relu", "TOKENS", ONE): 1})


def test_xielu_of_a_frozen_model_keeps_four_tensors() -> None:
    """Its input, the choice between both branches, the product with the first number,
    and what ``expm1`` returns.
    """
    view = layer_of("lora", MlpSpec(WIDTH, gated=False, activation="xielu"), PLAIN)
    run = Run(lambda torch, x: activation(torch, view, torch.same(x, "mul")), "bf16", WIDTH)

    assert run.kept == Counter(
        {("mul", "TOKENS", ONE): 2, ("gt", "TOKENS", WIDTH): 1, ("expm1", "TOKENS", ONE): 1}
    )
