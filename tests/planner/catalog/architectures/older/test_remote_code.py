"""Architectures whose module ships with the checkpoint: counts written out by hand, and names."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog.hf_config import model_from_config
from planner.catalog.models import model_entry
from planner.errors import InputFileError, NotModelledError

CHATGLM = {"chatglm2-6b", "chatglm3-6b", "glm-4-9b"}
BAICHUAN = {"baichuan-7b": "rope", "baichuan2-7b": "rope", "baichuan-13b": "alibi", "baichuan2-13b": "alibi"}
NAMES = ("qwen-1.8b", "qwen-7b", "qwen-14b", "qwen-72b", *CHATGLM, *BAICHUAN)


def _config(name: str) -> dict[str, Any]:
    """The configuration of an entry of the catalog."""
    return dict(model_entry(name).config)


def _baichuan_params(config: dict[str, Any]) -> int:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    layer = 3 * hidden * hidden + hidden * hidden + 3 * hidden * width + 2 * hidden
    return int(2 * config["vocab_size"] * hidden + config["num_hidden_layers"] * layer + hidden)


def _qwen_params(config: dict[str, Any]) -> int:
    hidden, half = config["hidden_size"], config["intermediate_size"] // 2
    layer = 3 * hidden * hidden + 3 * hidden + hidden * hidden + 3 * hidden * half + 2 * hidden
    return int(2 * config["vocab_size"] * hidden + config["num_hidden_layers"] * layer + hidden)


def _chatglm_params(config: dict[str, Any]) -> int:
    hidden, width = config["hidden_size"], config["ffn_hidden_size"]
    qkv = config["kv_channels"] * (config["num_attention_heads"] + 2 * config["multi_query_group_num"])
    layer = hidden * qkv + qkv + hidden * hidden + hidden * 2 * width + width * hidden + 2 * hidden
    return int(2 * config["padded_vocab_size"] * hidden + config["num_layers"] * layer + hidden)


HAND = {"baichuan": _baichuan_params, "qwen": _qwen_params, "chatglm": _chatglm_params}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_remote_code_count_by_hand(name: str) -> None:
    """Architectures that ship with the checkpoint agree with the sum written out from their modelling
    file.
    """
    config = _config(name)
    spec = model_from_config(config, name)
    assert spec.param_count == HAND[config["model_type"]](config)
    assert spec.remote_code
    assert not spec.tied


@pytest.mark.parametrize(("name", "names"), [
    ("baichuan2-7b", ["W_pack", "o_proj", "gate_proj", "up_proj", "down_proj"]),
    ("qwen-7b", ["c_attn", "c_proj", "w1", "w2", "c_proj"]),
    ("chatglm3-6b", ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]),
])  # fmt: skip
def test_remote_code_module_names(name: str, names: list[str]) -> None:
    """Remote-code blocks call their matrices what the modelling files call them, attention first."""
    (group,) = model_from_config(_config(name), name).groups
    assert [linear.name for linear in group.block.linears] == names


@pytest.mark.parametrize("size", ["7b", "13b"])
def test_baichuan_2_is_baichuan_1_with_more_rows(size: str) -> None:
    """Baichuan 2 adds 61,696 rows to the token table and to the head, nothing else,
    and normalises its head.
    """
    one = model_from_config(_config(f"baichuan-{size}"), "one")
    two = model_from_config(_config(f"baichuan2-{size}"), "two")
    assert two.param_count - one.param_count == 2 * (125_696 - 64_000) * one.hidden_size
    assert (one.normhead, two.normhead) == (False, True)
    assert one.groups == two.groups


def test_baichuan_positions_differ_by_size() -> None:
    """The 7B modules rotate, the 13B modules add a linear bias, though both are called baichuan."""
    for name, position in BAICHUAN.items():
        (group,) = model_from_config(_config(name), name).groups
        assert group.block.attention.position == position


def test_fp32_logits_follow_the_modelling_code() -> None:
    """ChatGLM converts logits to fp32 for the loss; Baichuan and Qwen 1 do not."""
    assert {name for name in NAMES if model_from_config(_config(name), name).fp32_logits} == CHATGLM


CHATGLM_SMALL = {
    "model_type": "chatglm", "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4,
    "kv_channels": 16, "num_layers": 2, "padded_vocab_size": 512,
}  # fmt: skip
QWEN_SMALL = {
    "model_type": "qwen", "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4,
    "num_hidden_layers": 2, "vocab_size": 512,
}  # fmt: skip
BAICHUAN_SMALL = {**QWEN_SMALL, "model_type": "baichuan", "vocab_size": 64_000, "max_position_embeddings": 64}


def test_chatglm_shares_keys_where_it_says_so() -> None:
    """A group for each head otherwise, which needs no copies."""
    shared = {"multi_query_attention": True, "multi_query_group_num": 2}
    for said, heads, makes in (({}, 4, "grouped"), (shared, 2, "expanded")):
        attention = model_from_config(CHATGLM_SMALL | said, "x").groups[0].block.attention
        assert (attention.n_kv_heads, attention.sdpa_input) == (heads, makes)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({**CHATGLM_SMALL, "ffn_hidden_size": None}, "is the first ChatGLM-6B"),
        ({**CHATGLM_SMALL, "vision_config": {"image_size": 224}}, "GLM-4V"),
        ({**QWEN_SMALL, "visual": {"layers": 2}}, "'visual' encoder"),
        ({**QWEN_SMALL, "tie_word_embeddings": True}, "Qwen 1 with tied embeddings"),
        ({**BAICHUAN_SMALL, "vocab_size": 70_000}, "cannot be told from vocab_size 70000"),
        ({**BAICHUAN_SMALL, "tie_word_embeddings": True}, "Baichuan with tied embeddings"),
    ],
)
def test_other_models_of_the_same_name_have_no_verdict(config: dict[str, Any], sentence: str) -> None:
    """One ``model_type`` names several modules."""
    with pytest.raises(NotModelledError, match=sentence):
        model_from_config(config, "x")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({**QWEN_SMALL, "intermediate_size": 191}, "must be even"),
        ({**QWEN_SMALL, "kv_channels": 8}, "kv_channels times num_attention_heads must be hidden_size 64"),
        ({**BAICHUAN_SMALL, "max_position_embeddings": None}, "which Baichuan is this"),
        (
            {**CHATGLM_SMALL, "multi_query_attention": True, "multi_query_group_num": 3},
            "4 is not divisible by multi_query_group_num 3",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(config: dict[str, Any], sentence: str) -> None:
    """With the numbers."""
    with pytest.raises(InputFileError, match=sentence):
        model_from_config(config, "x")


@pytest.mark.parametrize("name", ["minicpm-2b", "minicpm4-8b"])
def test_minicpm_is_llama_with_numbers(name: str) -> None:
    """Counted by hand; embeddings and branches are multiplied, and the code comes with the checkpoint."""
    config, spec = _config(name), model_from_config(_config(name), name)
    hidden, width = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * hidden // config["num_attention_heads"]
    layer = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * width + 2 * hidden
    tables = (1 if config["tie_word_embeddings"] else 2) * config["vocab_size"] * hidden
    assert spec.param_count == tables + config["num_hidden_layers"] * layer + hidden
    assert (spec.embedding_scale, spec.remote_code) == ("model", True)
    assert all(group.block.scales_branches for group in spec.groups)
    attention = spec.groups[0].block.attention
    copied = config["num_key_value_heads"] < config["num_attention_heads"]
    assert (attention.rotary_result, attention.sdpa_input) == ("fp32", "expanded" if copied else "grouped")


@pytest.mark.parametrize("more", [{"num_experts": 8}, {"sparse_config": {"kernel_size": 32}}])
def test_other_minicpms_are_refused(more: dict[str, Any]) -> None:
    """The mixture and MiniCPM4.1, whose attention is sparse."""
    with pytest.raises(NotModelledError, match="MiniCPM with"):
        model_from_config(_config("minicpm-2b") | more, "config.json")
