"""The feed-forward part: 64 features in and out, 128 between, in bf16 without autocast."""

from __future__ import annotations

from collections import Counter

import pytest

from planner.domain.model import MlpSpec
from planner.program.layers.feed_forward import feed_forward
from tests.planner.program.layer_views import FUSED, GATED, PLAIN, WIDTH, layer_of
from tests.planner.program.matrix_runs import Run

MIDDLE = WIDTH * 2


def test_a_gated_part_saves_gate_up_activated_gate_and_product() -> None:
    """Full: four tensors of the width between, the last of which the last matrix reads."""
    view = layer_of("full", MlpSpec(WIDTH, gated=True, activation="silu"), GATED)

    run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")

    assert run.kept == Counter(
        {("mm", "TOKENS", MIDDLE): 2, ("silu", "TOKENS", MIDDLE): 1, ("mul", "TOKENS", MIDDLE): 1}
    )


def test_frozen_matrices_do_not_save_what_they_read() -> None:
    """LoRA on attention alone: gate, up and the activated gate."""
    view = layer_of("lora", MlpSpec(WIDTH, gated=True, activation="silu"), GATED)

    run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")

    assert run.kept == Counter({("mm", "TOKENS", MIDDLE): 2, ("silu", "TOKENS", MIDDLE): 1})


def test_gradients_of_the_halves_of_one_product_are_joined() -> None:
    """The gradients of gate and up become one tensor before the matrix gets it."""
    view = layer_of("lora", MlpSpec(WIDTH, gated=True, activation="silu"), FUSED)

    run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")

    assert [op for op, _, _ in run.made("backward")] == ["mm", "mul", "mul", "silu_backward", "cat", "mm"]
    assert run.made("backward")[4] == ("cat", "TOKENS", 2 * MIDDLE)


@pytest.mark.parametrize(("autocast", "n_bytes"), [(False, WIDTH * 2), (True, WIDTH * 4)])
def test_gelu_new_takes_its_power_in_fp32_under_autocast(autocast: bool, n_bytes: int) -> None:
    """Saved: the power's input, tanh, and 1 + tanh in the dtype of the power; half the input in its own."""
    view = layer_of("lora", MlpSpec(WIDTH, gated=False, activation="gelu_new"), PLAIN, autocast=autocast)

    run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")

    of_input = ("to", "TOKENS", n_bytes) if autocast else ("mm", "TOKENS", n_bytes)
    saved = [of_input, ("tanh", "TOKENS", n_bytes), ("add", "TOKENS", n_bytes), ("mul", "TOKENS", MIDDLE)]
    assert run.kept == Counter(saved)


def test_gelu_new_is_one_kernel_where_the_stack_says_so() -> None:
    """Its input alone is saved."""
    mlp = MlpSpec(WIDTH, gated=False, activation="gelu_new")
    view = layer_of("lora", mlp, PLAIN, one_gelu_kernel=True)

    run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")

    assert run.kept == Counter({("mm", "TOKENS", MIDDLE): 1})


def test_a_fused_gate_writes_its_gradients_over_what_it_saved() -> None:
    """Backward allocates the gradients that matrices make, and none for the gate."""
    view = layer_of("lora", MlpSpec(WIDTH, gated=True, activation="silu"), GATED, fused_mlp=True)

    run = Run(lambda torch, x: feed_forward(torch, view, x), "bf16")

    assert run.kept == Counter({("mm", "TOKENS", MIDDLE): 2})
    assert {op for op, _, _ in run.made("backward")} <= {"mm", "add"}
