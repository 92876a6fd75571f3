"""Recipes beyond the plain ones, traced: which program they run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from scenarios import Setup
from tiny_traces import built, fake_trace, real_trace, small_scenario

from planner.domain.recipes.recipe import Numerics

SCALED = Setup(rank=4, numerics=Numerics("fp32", "fp16-mixed"), optimizer="adamw_torch")


def test_fp16_training_scales_the_loss_and_unscales_in_place() -> None:
    """Under fp16 autocast the step on fake tensors is that of a real run, GradScaler included,
    and makes no copy of gradients.
    """
    case = small_scenario("llama", SCALED)
    fake, real = fake_trace("llama", case), real_trace("llama", case)
    assert any("_amp_foreach_non_finite_check_and_unscale_" in name for name in fake.operators)
    ours = [(each.alloc, each.block.n_bytes) for each in fake.records if each.alloc]
    # A real run reads whether anything overflowed: no bytes, but one number on the way.
    theirs = [(each.alloc, each.block.n_bytes) for each in real.records if each.alloc]
    assert [size for _, size in ours if size > 64] == [size for _, size in theirs if size > 64]


@pytest.mark.parametrize(
    ("name", "wanted"), [("llama", {"q_proj", "k_proj", "v_proj", "o_proj"}), ("gpt2", {"c_attn", "c_proj"})]
)
def test_adapters_on_attention_only(name: str, wanted: set[str]) -> None:
    """The target ``attention`` stands for the attention projections of the architecture."""
    model: Any = built(name, small_scenario(name, Setup(rank=4, targets=("attention",)))).model
    adapted = {path.rpartition(".lora_A")[0] for path, _ in model.named_parameters() if ".lora_A" in path}
    assert {path.rpartition(".")[2] for path in adapted} == wanted
    assert all("attn" in path for path in adapted), "a matrix outside of attention was adapted"
