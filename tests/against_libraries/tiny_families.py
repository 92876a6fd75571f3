"""Every architecture of the matrix at a few thousand numbers per matrix, with two layers or one period."""

from __future__ import annotations

from typing import Any

from matrix.models import WIDTH_NAMES, text_fields

from planner.words import words

_HEADS = 4
_EXPERTS = 4
_VOCABULARY = 256
_LAYERS = 2
# Layers until every kind of them has come.
_PERIODS = {"gemma-3-1b": 6, "gemma-3-4b": 6, "olmo-3-7b": 4, "smollm3-3b": 4, "command-r7b-12-2024": 4}
# Grouped products want rows of whole 16 bytes, which are eight numbers in bf16.
_MULTIPLE = 8
_HEAD_NAMES = ("num_attention_heads", "n_head", "n_heads")
_KEY_HEAD_NAMES = frozenset({"num_key_value_heads", "num_kv_heads"})
_LAYER_NAMES = frozenset({"num_hidden_layers", "n_layer", "n_layers"})
_EXPERT_NAMES = frozenset({"num_experts", "num_local_experts", "n_routed_experts"})
# Groups of experts, and layers without any, have to fit the smaller numbers.  Of two layers, one attends and
# the other does not, whose plain code is slow.
_HYBRID = {"full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
_OVERRIDES: dict[str, dict[str, Any]] = {
    "deepseek-v3": {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
    "qwen3.5-0.8b": {**_HYBRID, "linear_num_value_heads": 2},
    **dict.fromkeys(("qwen3.5-35b-a3b", "qwen3-next-80b-a3b"), _HYBRID),
}
# What Transformers 5.23 has no SDPA for, and experts in one tensor,
# whose adapters take no dropout in PEFT 0.21.
WITHOUT_SDPA = frozenset({"gemma-2-9b", "bloom-7b1", "mpt-7b", "gpt-j-6b", "gpt-oss-20b"})
FUSED_EXPERTS = frozenset(
    words(
        """
            mixtral-8x7b qwen3-30b-a3b olmoe-1b-7b deepseek-v2-lite deepseek-v3 gpt-oss-20b
            qwen3-next-80b-a3b glm-4.5-air glm-4.7-flash ernie-4.5-21b-a3b hunyuan-a13b minimax-m2
            """
    )
)


COMPARED_ELSEWHERE = frozenset(
    {
        *("biogpt", "codegen", "cwm", "dbrx", "dots1", "gpt_bigcode", "gpt_neo", "helium"),
        *("hy_v3", "iquestcoder", "jais2", "phimoe", "solar_open", "youtu"),
    }
)
"""Architectures of the catalog that are compared with the trace in other files: those whose trace is in two
sizes alone (``step_program/test_later_decoders.py``), and DBRX (``dry_run/test_selected_experts.py``).
"""


def tiny_fields(model: str) -> dict[str, Any]:
    """The ``config.json`` of a catalog model with all widths divided by as much as its heads become fewer."""
    fields = text_fields(model)
    heads = next(fields[name] for name in _HEAD_NAMES if name in fields)
    layers = _PERIODS.get(model, _LAYERS)
    small = {name: _small(name, value, heads, layers) for name, value in fields.items()}
    # Special tokens of the configuration may lie beyond the short vocabulary.
    return {**small, "pad_token_id": 0, **_OVERRIDES.get(model, {})}


def _small(name: str, value: Any, heads: int, layers: int) -> Any:
    if name == "layer_types":
        return value[:layers]
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if name in _HEAD_NAMES:
        return _HEADS
    if name in WIDTH_NAMES:
        return value * _HEADS // heads // _MULTIPLE * _MULTIPLE
    if name in _KEY_HEAD_NAMES:
        return max(1, value * _HEADS // heads)
    caps = {"vocab_size": _VOCABULARY, "num_experts_per_tok": 2, "moe_topk": 2}
    caps |= dict.fromkeys(_LAYER_NAMES, layers) | dict.fromkeys(_EXPERT_NAMES, _EXPERTS)
    return min(value, caps.get(name, value))
