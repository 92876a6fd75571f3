"""Arithmetic of a step against a pocket calculator: Llama-2-7B, and one layer of a mixture."""

from __future__ import annotations

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.model import ModelSpec
from planner.throughput.flop import attention_forward_macs, model_flop
from tests.planner.throughput.jobs import (
    BLOCK_WEIGHTS,
    FIRST_QKV,
    LLAMA_2_7B,
    LORA_WIDTHS,
    N,
    all_flop,
    job,
    recipe,
    scenario,
)


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
def test_products(llama: ModelSpec, method: str, changes: dict[str, bool], expected: int) -> None:
    """Forward 2N, input gradient 2N, weight gradient 2N."""
    assert all_flop(job(scenario(llama, recipe(method, **changes)))) == pytest.approx(4096 * expected)


def test_attention_is_four_s_squared_d_over_two(llama: ModelSpec) -> None:
    """FlashAttention's count, halved by causality: 4 x s^2 x 4096 / 2 per layer, with the diagonal."""
    assert 2 * attention_forward_macs(llama, 2048) == 32 * 4 * 4096 * (2048 + 1) / 2


def test_model_flop_counts_no_recomputation(llama: ModelSpec) -> None:
    """Utilisation is the same numerator with and without checkpointing: 6N and three attention passes."""
    plain, again = (job(scenario(llama, recipe(gradient_checkpointing=each))) for each in (False, True))
    expected = 4096 * (6 * N + 3 * 2 * attention_forward_macs(llama, 1024))
    assert model_flop(plain) == pytest.approx(expected)
    assert model_flop(again) == pytest.approx(expected)


def test_experts_count_what_a_token_passes() -> None:
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
