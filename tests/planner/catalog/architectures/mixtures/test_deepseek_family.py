"""Latent attention of DeepSeek and its kin: shapes by hand, and layers that are refused."""

from __future__ import annotations

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.models import load_model
from planner.errors import InputFileError, NotModelledError

_SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
}


def test_latent_attention_shapes() -> None:
    """Without a cache keys are expanded to every head (192 features), values to 128;
    both latents carry a norm.
    """
    spec = load_model("deepseek-v3").spec
    dense, sparse = spec.groups
    assert (dense.count, sparse.count) == (3, 58)
    attention = sparse.block.attention
    assert (attention.k_width, attention.v_width, attention.out_width) == (128 * 192, 128 * 128, 128 * 128)
    reads = {linear.name: linear.reads for linear in sparse.block.linears}
    assert (reads["q_b_proj"], reads["kv_b_proj"], reads["kv_a_proj_with_mqa"]) == (
        "attn_latent_q",
        "attn_latent_kv",
        "attn_in",
    )
    assert [norm.width for norm in sparse.block.norms if norm.on == "latent"] == [1536, 512]


def test_dense_layers_behind_experts_are_refused() -> None:
    """GLM-4.7 Flash lists the kind of every layer."""
    fields = {"model_type": "glm4_moe_lite", **_SMALL, "num_experts_per_tok": 2, "n_routed_experts": 4}
    with pytest.raises(NotModelledError, match="mlp_layer_types"):
        model_from_config({**fields, "mlp_layer_types": ["sparse", "dense"] * 3}, "x")


def test_dots_has_windows_and_experts_that_its_file_must_name() -> None:
    """Layers from the 63rd on attend to a window; its class has no number of experts of its own."""
    experts = {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2}
    small = {**_SMALL, "model_type": "dots1", "first_k_dense_replace": 2, "moe_intermediate_size": 32}
    spec = model_from_config({**small, **experts, "max_window_layers": 4, "sliding_window": 16}, "x")
    windows = [
        (group.block.mlp.n_experts, group.block.attention.window_tokens, group.count) for group in spec.groups
    ]
    assert windows == [(0, None, 2), (8, None, 2), (8, 16, 2)]
    with pytest.raises(InputFileError, match="n_routed_experts"):
        model_from_config(small, "x")
