"""Gemma 4: local and global layers of different heads, keys that are values in the global ones,
experts beside a dense part.

Module names, shapes and defaults are those of Transformers 5.23 (``models/gemma4``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.fields import ConfigFields
from planner.catalog.architectures.llama_family import attention_of, decoder, head_norms
from planner.catalog.architectures.moe_family import SPLIT_NAMES
from planner.catalog.architectures.parts import (
    fused_experts,
    gated_mlp,
    layers_in_order,
    rms,
    separate_qkv,
    with_scaling,
)
from planner.catalog.architectures.windows import FULL, SLIDING, alternating_types, layer_windows
from planner.domain.model import AttentionSpec, BlockSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec
from planner.errors import NotModelledError

_PERIOD = 6
_ACTIVATION = "gelu_pytorch_tanh"


def read_gemma4_text(fields: ConfigFields) -> ModelSpec:
    """``gemma4_text``: the dense models and those with experts.

    Raises:
        NotModelledError: embeddings for each layer, or layers that share keys (E2B, E4B);
            attention that sees what comes behind.
    """
    if fields.data.get("use_bidirectional_attention") == "all":
        raise NotModelledError(f"{fields.where}: Gemma 4 that sees what comes behind is not modelled")
    n_layers = fields.layers("num_hidden_layers")
    if fields.count("hidden_size_per_layer_input", default=256) or fields.count("num_kv_shared_layers"):
        raise NotModelledError(
            f"{fields.where}: Gemma 4 with embeddings for each layer or shared keys is not modelled"
        )
    window = fields.integer("sliding_window", default=512)
    windows = layer_windows(fields, n_layers, window, alternating_types(n_layers, _PERIOD))
    windows[-1] = None
    blocks = {each: _block(fields, each) for each in dict.fromkeys(windows)}
    layers = [blocks[each] for each in windows]
    spec = decoder(ConfigFields({"vocab_size": 262_144, **fields.data}, fields.where), layers, tied_default=True)
    spec = with_scaling(replace(spec, groups=layers_in_order(layers)), "in_fp32")
    return replace(spec, embedding_scale="table", logit_softcap=fields.has("final_logit_softcapping"))


def _attention(fields: ConfigFields, window: int | None) -> AttentionSpec:
    """Global layers have heads of their own size, whose keys may be the values, too."""
    local = attention_of(fields, kv_default=4, head_dim_default=256)
    local = replace(local, window_tokens=window, rotates_rows=True)
    if window is not None:
        return local
    size = fields.integer("global_head_dim", default=512)
    one_product = fields.flag("attention_k_eq_v", False)
    shared = fields.optional_integer("num_global_key_value_heads") if one_product else None
    heads = shared or local.n_kv_heads
    return replace(local, n_kv_heads=heads, head_dim=size, value_head_dim=size, key_is_value=one_product)


def _block(fields: ConfigFields, window: int | None) -> BlockSpec:
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    attention, bias = _attention(fields, window), fields.flag("attention_bias", False)
    linears = separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias)
    if attention.key_is_value:
        linears = tuple(each for each in linears if each.name != "v_proj")
    of_values = NormSpec(
        "rms", attention.head_dim, weight=False, on="heads", rows_per_token=attention.n_kv_heads
    )
    mlp = MlpSpec(width, gated=True, activation=fields.text("hidden_activation", _ACTIVATION))
    norms = (rms(hidden, copies=4), *head_norms(attention), of_values)
    block = BlockSpec(attention, mlp, linears + gated_mlp(hidden, width), norms)
    return _with_experts(fields, block, hidden) if fields.flag("enable_moe_block", False) else block


READERS = {"gemma4_text": read_gemma4_text}
