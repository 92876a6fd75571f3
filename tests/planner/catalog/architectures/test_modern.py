"""What the readers of the modern architectures say beyond shapes, and what they refuse.  Needs no torch."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.models import load_model, model_entry
from planner.domain.model import ModelSpec
from planner.errors import InputFileError, NotModelledError

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


def _spec(name: str) -> ModelSpec:
    return load_model(name).spec


def test_active_parameters_of_mixtures() -> None:
    """One token passes through as many parameters as the authors give, within their rounding."""
    published = {
        "mixtral-8x7b": 12.9e9,
        "qwen3-30b-a3b": 3.3e9,
        "qwen3-235b-a22b": 22e9,
        "olmoe-1b-7b": 1.3e9,
    }
    published |= {"deepseek-v3": 37e9, "granite-3.1-3b-a800m": 0.8e9, "deepseek-v2-lite": 2.4e9}
    for name, active in published.items():
        spec = _spec(name)
        assert spec.is_moe
        # Authors differ in whether they count the token table; the bound leaves room for it.
        assert active * 0.95 <= spec.active_param_count <= active * 1.15 + spec.token_embedding.param_count


def test_latent_attention_shapes() -> None:
    """Without a cache keys are expanded to every head (192 features), values to 128;
    both latents carry a norm.
    """
    spec = _spec("deepseek-v3")
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


def test_positions_and_caps() -> None:
    """Every fourth SmolLM3 layer has no rotary positions; Gemma 2 caps scores and logits,
    Gemma 3 neither; gpt-oss has sinks.
    """
    smol = _spec("smollm3-3b")
    assert {group.block.attention.position: group.count for group in smol.groups} == {"rope": 27, "none": 9}
    gemma2 = _spec("gemma-2-2b")
    gemma3 = _spec("gemma-3-1b")
    assert (gemma2.logit_softcap, gemma2.groups[0].block.attention.softcap) == (True, True)
    assert (gemma3.logit_softcap, gemma3.groups[0].block.attention.softcap) == (False, False)
    assert {group.block.attention.window_tokens: group.count for group in gemma3.groups} == {512: 22, None: 4}
    oss = _spec("gpt-oss-20b")
    assert all(group.block.attention.sinks for group in oss.groups)


def _internlm_params(config: dict[str, Any]) -> int:
    hidden, width, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    keys = hidden // heads * config["num_key_value_heads"]
    biases = (2 * hidden + 2 * keys) if config["bias"] else 0
    layer = 2 * hidden * hidden + 2 * hidden * keys + biases + 3 * hidden * width + 2 * hidden
    return 2 * config["vocab_size"] * hidden + config["num_hidden_layers"] * layer + hidden


@pytest.mark.parametrize(
    "name", ["internlm-7b", "internlm-20b", "internlm2-1.8b", "internlm2-7b", "internlm2-20b"]
)
def test_remote_code_count_by_hand(name: str) -> None:
    """InternLM 1 and 2 agree with the sum written out from their modelling files."""
    config, spec = model_entry(name).config, _spec(name)
    assert spec.param_count == _internlm_params(config)
    assert spec.remote_code
    assert spec.fp32_logits == (config["model_type"] == "internlm2")


def test_internlm2_module_names() -> None:
    """InternLM2 fuses query, key and value, and calls gate, up and down w1, w3 and w2."""
    (group,) = _spec("internlm2-7b").groups
    assert [linear.name for linear in group.block.linears] == ["wqkv", "wo", "w1", "w3", "w2"]
    assert group.block.linears[0].out_features == (32 + 2 * 8) * 128


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
    ("phimoe", {}),
])  # fmt: skip
def test_variants_without_formulas_are_not_guessed(kind: str, change: dict[str, Any]) -> None:
    """Layers, encoders and architectures that no formula covers end without a verdict."""
    with pytest.raises(NotModelledError):
        model_from_config({"model_type": kind} | _SMALL | change, "made up")
