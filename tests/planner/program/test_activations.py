"""Activations that Python code spells out, over 128 features in bf16."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from planner.domain.model import MlpSpec
from planner.program.activations import activation, clamped_gate
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
    """Only the input is saved.  Then tanh, half the input, 1 - tanh squared, a product with the input and one more of it."""
    view = layer_of("lora", MlpSpec(WIDTH, gated=False, activation="bloom_gelu"), PLAIN)

    run = Run(lambda torch, x: activation(torch, view, torch.same(x, "mul")), "bf16", WIDTH)

    assert run.kept == Counter({("mul", "TOKENS", ONE): 1})
    backward = run.torch.stages["backward"]
    made = {event for event in backward if event >= 0}
    assert max(accumulate((event in made) - (~event in made) for event in backward)) == 5


def test_relu_saves_what_it_returns_and_silu_what_it_reads() -> None:
    """One tensor either way."""
    relu, silu = (layer_of("lora", MlpSpec(WIDTH, gated=False, activation=name), PLAIN) for name in ("relu", "silu"))

    runs = [Run(lambda torch, x, v=view: activation(torch, v, torch.same(x, "mul")), "bf16", WIDTH) for view in (relu, silu)]  # type: ignore[misc]

    assert runs[0].kept == Counter({("relu", "TOKENS", ONE): 1})
    assert runs[1].kept == Counter({("mul", "TOKENS", ONE): 1})
