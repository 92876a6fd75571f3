"""What readers of later mixtures say: which layers have experts, counts by hand, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.domain.model import ModelSpec
from planner.errors import InputFileError

H, V = 64, 512
BASE = {
    "hidden_size": H, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": V,
    "num_hidden_layers": 6, "intermediate_size": 96, "moe_intermediate_size": 32,
}  # fmt: skip
ERNIE = {"model_type": "ernie4_5_moe", **BASE, "moe_num_experts": 4, "moe_k": 2}
GLM = {"model_type": "glm4_moe", **BASE, "n_routed_experts": 4, "num_experts_per_tok": 2}
HUNYUAN = {"model_type": "hunyuan_v1_moe", **BASE}
MINIMAX = {"model_type": "minimax_m2", **BASE, "num_local_experts": 4, "num_experts_per_tok": 2}


def spec(base: dict[str, Any], **more: Any) -> ModelSpec:
    """The model of a small configuration."""
    return model_from_config(base | more, "x")


def counts(model: ModelSpec) -> dict[int, int]:
    """Layers by their number of experts."""
    found: dict[int, int] = {}
    for group in model.groups:
        experts = group.block.mlp.n_experts
        found[experts] = found.get(experts, 0) + group.count
    return found


@pytest.mark.parametrize(
    ("said", "sparse"),
    [
        ({}, 5),
        ({"moe_layer_start_index": 0}, 6),
        ({"moe_layer_start_index": 0, "moe_layer_interval": 4}, 1),
        ({"moe_layer_start_index": 0, "moe_layer_end_index": 3}, 4),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 3}, 2),
        ({"moe_layer_interval": 7}, 0),
    ],
)
def test_layers_of_ernie_with_experts(said: dict[str, int], sparse: int) -> None:
    """From the first index to the last, both with experts, every so many."""
    found = counts(spec(ERNIE, **said))
    assert (found.get(4, 0), found.get(0, 0)) == (sparse, 6 - sparse)


@pytest.mark.parametrize(("first", "dense"), [(0, 0), (2, 2), (99, 6)])
def test_the_first_layers_of_glm_are_dense(first: int, dense: int) -> None:
    """All of them at most."""
    assert counts(spec(GLM, first_k_dense_replace=first)).get(0, 0) == dense


def test_glm_by_hand() -> None:
    """Queries of 64, keys and values of 32; three matrices in each expert and dense layer."""
    attention = H * 64 + 2 * H * 32 + 64 * H + 2 * H
    sparse = attention + 4 * H + (4 + 1) * 3 * H * 32
    dense = attention + 3 * H * 96
    assert spec(GLM).param_count == dense + 5 * sparse + 2 * V * H + H
    normed = spec(GLM, use_qk_norm=True)
    assert normed.param_count - spec(GLM).param_count == 6 * 2 * 16


@pytest.mark.parametrize(("said", "width"), [({"rotary_dim": 8}, 8), ({}, 16), ({"rotary_dim": 99}, 16)])
def test_minimax_turns_a_number_of_features(said: dict[str, int], width: int) -> None:
    """At most those of a head."""
    assert spec(MINIMAX, **said).groups[0].block.attention.rotary_width == width


def test_hunyuan_says_the_chosen_experts_for_each_layer() -> None:
    """They must be the same; without a word there is one expert."""
    listed = spec(HUNYUAN, num_experts=4, moe_topk=[2] * 6)
    assert (listed.groups[0].block.mlp.top_k, listed.groups[0].block.mlp.shared_width) == (2, 96)
    assert counts(spec(HUNYUAN)) == {1: 6}
    with pytest.raises(InputFileError, match="moe_topk differs from layer to layer"):
        spec(HUNYUAN, num_experts=4, moe_topk=[1, 2, 2, 2, 2, 2])
