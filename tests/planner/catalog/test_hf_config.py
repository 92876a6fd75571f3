"""Configs that are no model of ours: fields that are broken, and variants that no reader describes."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.location import data_dir
from planner.errors import InputFileError, NotModelledError
from planner.files.structured import read_toml


def _config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = read_toml(data_dir() / "models" / f"{name}.toml")["config"]
    return config


@pytest.mark.parametrize(("name", "change", "words"), [
    ("baichuan2-7b", {"vocab_size": 70_000, "z_loss_weight": None}, "cannot be told"),
    ("baichuan2-7b", {"tie_word_embeddings": True}, "tied"),
    ("chatglm3-6b", {"ffn_hidden_size": None, "inner_hidden_size": 16384}, "first ChatGLM-6B"),
    ("glm-4-9b", {"vision_config": {"num_layers": 63}}, "vision"),
    ("qwen-7b", {"visual": {"width": 1664}}, "visual"),
    ("qwen-7b", {"tie_word_embeddings": True}, "tied"),
    ("gpt2", {"add_cross_attention": True}, "cross-attention"),
    ("mpt-7b", {"no_bias": False}, "no_bias"),
    ("mpt-7b", {"expansion_ratio": 6}, "expansion_ratio"),
    ("mpt-7b", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_type"),
    ("mpt-7b", {"attn_config": {"qk_ln": True}}, "qk_ln"),
    ("mpt-7b", {"attn_config": {"alibi": False}}, "alibi"),
])  # fmt: skip
def test_unmodelled_variants_are_refused(name: str, change: dict[str, Any], words: str) -> None:
    """A config of a known type that builds another module gets no verdict,
    and the message says what it is.
    """
    with pytest.raises(NotModelledError, match=words):
        model_from_config(_config(name) | change, "config.json")


@pytest.mark.parametrize(("name", "change", "words"), [
    ("gpt2", {"n_embd": None}, "n_embd"),
    ("gpt2", {"n_head": 7}, "not divisible"),
    ("gpt-j-6b", {"n_layer": 0}, "n_layer"),
    ("pythia-70m", {"intermediate_size": "2048"}, "intermediate_size"),
    ("opt-350m", {"enable_bias": 1}, "enable_bias"),
    ("bloom-3b", {"vocab_size": -1}, "vocab_size"),
    ("falcon-40b", {"num_kv_heads": 7}, "num_kv_heads"),
    ("falcon-7b", {"multi_query": False, "num_kv_heads": 1}, "num_kv_heads"),
    ("falcon-7b", {"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn"),
    ("falcon-40b", {"parallel_attn": False}, "parallel_attn"),
    ("mpt-7b", {"attn_config": 3}, "attn_config"),
    ("phi-2", {"num_key_value_heads": 5}, "num_key_value_heads"),
    ("stablelm-3b-4e1t", {"num_key_value_heads": 5}, "num_key_value_heads"),
    ("glm-4-9b-hf", {"num_key_value_heads": 5}, "num_key_value_heads"),
    ("baichuan-13b", {"model_max_length": None}, "which Baichuan"),
    ("chatglm3-6b", {"multi_query_group_num": 5}, "multi_query_group_num"),
    ("chatglm3-6b", {"padded_vocab_size": None}, "padded_vocab_size"),
    ("qwen-7b", {"kv_channels": 64}, "kv_channels"),
    ("qwen-7b", {"intermediate_size": 22017}, "even"),
])  # fmt: skip
def test_broken_configs_name_the_field(name: str, change: dict[str, Any], words: str) -> None:
    """A missing, ill-typed or inconsistent field is an error that names file and field."""
    with pytest.raises(InputFileError, match=words) as caught:
        model_from_config(_config(name) | change, "some/config.json")
    assert str(caught.value).startswith("some/config.json")


_SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 96,
}


_MLA = {
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "moe_intermediate_size": 20,
}


@pytest.mark.parametrize(("kind", "change", "said"), [
    ("llama", {"hidden_size": 50}, "not divisible"),
    ("llama", {"num_key_value_heads": 3}, "not divisible"),
    ("llama", {"vocab_size": None}, "vocab_size"),
    ("qwen2", {"num_key_value_heads": 2, "layer_types": ["full_attention"]}, "layer_types names 1"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers names 1"),
    ("gemma2", {"final_logit_softcapping": "thirty"}, "final_logit_softcapping"),
    ("mixtral", {"num_key_value_heads": 2, "num_experts_per_tok": 9}, "above the number of experts"),
    ("deepseek_v2", dict(_MLA), "num_experts_per_tok"),
    ("gemma3", {}, "text_config"),
])  # fmt: skip
def test_impossible_configs_are_refused(kind: str, change: dict[str, Any], said: str) -> None:
    """Sizes that do not divide, lists of the wrong length and missing fields are named, not guessed."""
    with pytest.raises(InputFileError, match=said):
        model_from_config({"model_type": kind} | _SMALL | change, "made up")


@pytest.mark.parametrize(("kind", "change"), [
    ("qwen2", {"num_key_value_heads": 2, "layer_types": ["linear_attention"] * 4}),
    ("gemma3_text", {"use_bidirectional_attention": True}),
    ("phi3small", {}),
    ("xglm", {}),
])  # fmt: skip
def test_variants_without_formulas_are_not_guessed(kind: str, change: dict[str, Any]) -> None:
    """Layers, encoders and architectures that no formula covers end without a verdict."""
    with pytest.raises(NotModelledError):
        model_from_config({"model_type": kind} | _SMALL | change, "made up")
