"""The models of the matrix: one or more catalog entries of every architecture that Transformers ships,
whole and scaled down.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.catalog.models import model_entry
from planner.words import words

# Every model_type of the catalog that ships with Transformers,
# with the variants whose code takes another path.
MODELS: tuple[str, ...] = words(
    """
    llama-3.1-8b llama-2-7b yi-6b deepseek-llm-7b mistral-7b-v0.3 mistral-7b-v0.1 mixtral-8x7b qwen1.5-7b
    qwen2-0.5b qwen2.5-7b qwen1.5-moe-a2.7b qwen3-8b qwen3-30b-a3b gemma-2b gemma-7b gemma-2-9b gemma-3-1b
    gemma-3-4b phi-1_5 phi-2 phi-3-mini-4k phi-4 falcon-7b falcon-40b falcon-11b bloom-7b1 mpt-7b
    gpt2-large gpt-j-6b gpt-neox-20b pythia-1.4b opt-1.3b opt-350m stablelm-3b-4e1t stablelm-2-1_6b
    olmo-2-7b olmo-3-7b olmoe-1b-7b granite-3.1-8b granite-3.1-1b-a400m glm-4-9b-hf glm-4-9b-0414
    command-r-v01 deepseek-v2-lite deepseek-v3 gpt-oss-20b qwen3.5-0.8b qwen3.5-35b-a3b qwen3-next-80b-a3b
    glm-4.5-air glm-4.7-flash ernie-4.5-21b-a3b hunyuan-7b llama-4-scout granite-4.0-micro smollm2-1.7b
    smollm3-3b internlm3-8b starcoder2-3b command-r7b-12-2024 minitron-4b trinity-nano apertus-8b olmo-7b
    seed-oss-36b afm-4.5b ernie-4.5-0.3b exaone-4.0-32b hunyuan-a13b minimax-m2 minicpm3-4b
    """
)
SMALL_LAYERS = 4
_SMALL_VOCABULARY = 8192
_SMALL_EXPERTS = 8
_DIVISOR = 4
WIDTH_NAMES = frozenset(
    words(
        """
            hidden_size n_embd d_model intermediate_size ffn_dim ffn_hidden_size word_embed_proj_dim
            moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank n_inner
            """
    )
)
_HEADS = frozenset({"num_attention_heads", "n_head", "n_heads"})
_KEY_HEADS = frozenset({"num_key_value_heads", "num_kv_heads"})
# What becomes at most so many.
_CAPS = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), SMALL_LAYERS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), _SMALL_EXPERTS),
    "num_experts_per_tok": _SMALL_EXPERTS // 4,
    "vocab_size": _SMALL_VOCABULARY,
}
# What a quarter does not fit: head counts that four does not divide, groups of experts.
_SMALL_OVERRIDES: dict[str, dict[str, Any]] = {
    "falcon-7b": {"hidden_size": 1024, "num_attention_heads": 16},
    "qwen2-0.5b": {"hidden_size": 448, "num_attention_heads": 7, "num_key_value_heads": 1},
    # Every sixth layer of Gemma 3 sees the whole sequence, and its model makes both masks.
    "gemma-3-1b": {"layer_types": [*3 * ["sliding_attention"], "full_attention"]},
    "gemma-3-4b": {"layer_types": [*3 * ["sliding_attention"], "full_attention"]},
    "deepseek-v3": {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
}


def small_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """A ``config.json`` scaled down: widths and heads to a quarter (heads keep their size), few layers,
    a short vocabulary.
    """
    # Padding tokens of the configuration classes may lie beyond the short vocabulary.
    return {"pad_token_id": 0, **{name: _small(name, value, fields) for name, value in fields.items()}}


def _small(name: str, value: Any, fields: dict[str, Any]) -> Any:
    if name == "layer_types":
        return value[:SMALL_LAYERS]
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if name in _CAPS:
        return min(value, _CAPS[name])
    if name in WIDTH_NAMES:
        return value // _DIVISOR
    if name in _HEADS:
        return max(1, value // _DIVISOR)
    if name in _KEY_HEADS and value > 1:
        heads = next((fields[head] for head in _HEADS if head in fields), value)
        return max(1, heads // _DIVISOR * value // heads)
    return value


def text_fields(model: str) -> dict[str, Any]:
    """The ``config.json`` of a catalog model's language model:
    vision towers are no part of either instrument's answer.
    """
    fields = model_entry(model).config_fields()
    text: dict[str, Any] = fields.get("text_config", fields)
    return text if text is fields or "torch_dtype" in text else {"torch_dtype": fields["torch_dtype"], **text}


def write_config(model: str, folder: Path, *, small: bool) -> Path:
    """A ``config.json`` for both instruments, written into ``folder``."""
    fields = text_fields(model)
    if small:
        fields = {**small_fields(fields), **_SMALL_OVERRIDES.get(model, {})}
    path = folder / f"{model}{'-small' if small else ''}.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path
