"""What the readers of the classic and remote-code architectures refuse, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.location import data_dir
from planner.catalog.models import load_model
from planner.errors import InputFileError, NotModelledError
from planner.files.structured import read_toml
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve


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


MOSAIC = {
    "model_type": "mosaic_gpt",
    "vocab_size": 1000,
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "max_seq_len": 128,
}


def test_mosaic_gpt_by_hand() -> None:
    """MPT 1B: 24 layers of 12 h^2 in matrices and four norms without bias, one tied table,
    no table of positions.
    """
    spec = load_model("mosaicml/mpt-1b-redpajama-200b").spec
    hidden, table = 2048, 50_368 * 2048
    assert spec.param_count == 24 * (12 * hidden**2 + 4 * hidden) + table + hidden == 1_311_311_872
    assert [norm.on for norm in spec.groups[0].block.norms] == ["hidden", "heads"]
    assert spec.groups[0].block.attention.position == "alibi"
    assert spec.tied
    assert spec.remote_code


def test_mosaic_gpt_with_biases_and_positions() -> None:
    """By default there are biases and a table of positions, and no norms of query and key."""
    spec = model_from_config(MOSAIC, "config")
    hidden = 64
    per_layer = 12 * hidden**2 + (3 + 1 + 4 + 1) * hidden + 2 * 2 * hidden
    assert spec.param_count == 2 * per_layer + (1000 + 128) * hidden + 2 * hidden
    assert spec.groups[0].block.attention.position == "learned"


def test_mosaic_gpt_writes_attention_out() -> None:
    """Its module has no call of torch's fused kernels,
    so that an unsaid kernel is eager under every stack.
    """
    flags = {"model": "mpt-1b", "method": "lora", "gpu": "4090", "seq": 512}
    for stack in ("hf-trainer@5", "hf-trainer@4", "llama-factory"):
        assert resolve(from_flags({**flags, "stack": stack})).recipe.attention == "eager"
