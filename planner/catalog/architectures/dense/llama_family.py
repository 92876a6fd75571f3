"""Llama and the dense architectures that follow its block: Mistral, Qwen2, Qwen3, Granite,
OLMo 2 and 3, SmolLM3.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.parts import (
    gated_mlp,
    group_layers,
    lm_head,
    rms,
    separate_qkv,
    token_embedding,
    with_scaling,
)
from planner.catalog.architectures.windows import (
    FULL,
    SLIDING,
    alternating_types,
    layer_windows,
    qwen_windows,
    window_field,
)
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, MlpSpec, ModelSpec, NormSpec


def attention_of(
    fields: ConfigFields,
    *,
    window_tokens: int | None = None,
    kv_default: int | None = None,
    head_dim_default: int | None = None,
    heads_default: int | None = None,
) -> AttentionSpec:
    """Grouped-query attention from the usual field names.

    ``num_key_value_heads`` null means one per query head; absent it means ``kv_default``, or one per query
    head where the configuration class has no number of its own.  ``head_dim`` defaults to
    ``head_dim_default``, else hidden / heads.
    """
    hidden = fields.integer("hidden_size")
    heads = fields.integer("num_attention_heads", default=heads_default)
    if head_dim_default is None and not fields.has("head_dim") and hidden % heads:
        raise fields.fail(f"hidden_size {hidden} is not divisible by num_attention_heads {heads}")
    head_dim = fields.integer("head_dim", default=head_dim_default or hidden // heads)
    is_null = "num_key_value_heads" in fields.data and not fields.has("num_key_value_heads")
    kv_heads = fields.integer(
        "num_key_value_heads", default=heads if is_null or kv_default is None else kv_default
    )
    if heads % kv_heads:
        raise fields.fail(f"num_attention_heads {heads} is not divisible by num_key_value_heads {kv_heads}")
    drops = fields.is_positive("attention_dropout", 0.0)
    return AttentionSpec(heads, kv_heads, head_dim, head_dim, window_tokens=window_tokens, dropout=drops)


def head_norms(attention: AttentionSpec) -> tuple[NormSpec, ...]:
    """Query and key norms over each head's features (Qwen3, Gemma 3)."""
    return (
        NormSpec("rms", attention.head_dim, on="heads", rows_per_token=attention.n_heads),
        NormSpec("rms", attention.head_dim, on="heads", rows_per_token=attention.n_kv_heads),
    )


def wide_head_norms(attention: AttentionSpec) -> tuple[NormSpec, ...]:
    """Query and key norms over all heads at once (OLMo 2, OLMoE)."""
    return (NormSpec("rms", attention.q_width, on="heads"), NormSpec("rms", attention.k_width, on="heads"))


def with_windows(block: BlockSpec, windows: Sequence[int | None]) -> list[BlockSpec]:
    """``block`` once per layer, each with its own sliding window."""
    variants = {
        window: replace(block, attention=replace(block.attention, window_tokens=window))
        for window in dict.fromkeys(windows)
    }
    return [variants[window] for window in windows]


def decoder(fields: ConfigFields, blocks: list[BlockSpec], *, tied_default: bool = False) -> ModelSpec:
    """A model of ``blocks`` with one token table, a final RMS norm and a bias-free head."""
    hidden = fields.integer("hidden_size")
    table = token_embedding(fields, hidden)
    return ModelSpec(
        id="",
        hub_id="",
        architecture=fields.text("model_type", ""),
        hidden_size=hidden,
        vocab_size=table.rows,
        groups=group_layers(blocks),
        token_embedding=table,
        head=lm_head(hidden, table.rows),
        tied=fields.flag("tie_word_embeddings", tied_default),
        max_position_tokens=fields.optional_integer("max_position_embeddings"),
        final_norms=(rms(hidden),),
    )


def llama_block(
    fields: ConfigFields,
    attention: AttentionSpec,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
) -> BlockSpec:
    """Llama's layer around ``attention``: separate projections, gated MLP, a norm before each branch."""
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    return BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation=fields.text("hidden_act", "silu")),
        linears=separate_qkv(attention, hidden, qkv_bias=qkv_bias, out_bias=out_bias)
        + gated_mlp(hidden, width, bias=mlp_bias),
        norms=(rms(hidden, copies=2),),
    )


def _biased_block(fields: ConfigFields, attention: AttentionSpec) -> BlockSpec:
    """:func:`llama_block` with the two bias switches that Llama, Granite and SmolLM3 have."""
    bias = fields.flag("attention_bias", False)
    return llama_block(
        fields, attention, qkv_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias", False)
    )


def read_llama(fields: ConfigFields) -> ModelSpec:
    """``llama``: also TinyLlama, Yi, SmolLM2, DeepSeek-LLM and everything else published under this type."""
    block = replace(
        _biased_block(fields, attention_of(fields)),
        scales_branches=fields.text("model_type", "") == "granite",
    )
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


def read_granite(fields: ConfigFields) -> ModelSpec:
    """``granite``: the modules of Llama; embeddings and logits are multiplied by numbers."""
    return replace(read_llama(fields), embedding_scale="model", scales_logits=True)


def read_mistral(fields: ConfigFields) -> ModelSpec:
    """``mistral``: one sliding window on all layers, 4096 when the field is absent, none when it is null."""
    attention = attention_of(fields, window_tokens=window_field(fields, 4096), kv_default=8)
    return decoder(fields, [llama_block(fields, attention)] * fields.layers("num_hidden_layers"))


def read_qwen2(fields: ConfigFields) -> ModelSpec:
    """``qwen2`` (Qwen1.5, Qwen2, Qwen2.5): query, key and value always with bias,
    the output projection without.
    """
    block = llama_block(fields, attention_of(fields, kv_default=32), qkv_bias=True)
    return decoder(fields, with_windows(block, qwen_windows(fields, fields.layers("num_hidden_layers"))))


def read_qwen3(fields: ConfigFields) -> ModelSpec:
    """``qwen3``: per-head query and key norms, heads of 128 features whatever the hidden size."""
    bias = fields.flag("attention_bias", False)
    attention = attention_of(fields, kv_default=32, head_dim_default=128)
    block = llama_block(fields, attention, qkv_bias=bias, out_bias=bias)
    block = replace(block, norms=block.norms + head_norms(attention))
    return decoder(fields, with_windows(block, qwen_windows(fields, fields.layers("num_hidden_layers"))))


def read_olmo2(fields: ConfigFields) -> ModelSpec:
    """``olmo2``: both hidden norms come after their branch;
    query and key are normalised over all heads at once.
    """
    return with_scaling(decoder(fields, [_olmo_block(fields)] * fields.layers("num_hidden_layers")), "wide")


def read_olmo3(fields: ConfigFields) -> ModelSpec:
    """``olmo3``: the modules of OLMo 2;
    three layers of four attend to a window of 4096 tokens when the file names none.
    """
    n_layers = fields.layers("num_hidden_layers")
    windows = layer_windows(fields, n_layers, window_field(fields, 4096), alternating_types(n_layers, 4))
    block = _olmo_block(fields)
    block = replace(block, attention=replace(block.attention, tables_by_window=True))
    return with_scaling(decoder(fields, with_windows(block, windows)), "wide")


def _olmo_block(fields: ConfigFields) -> BlockSpec:
    attention = replace(attention_of(fields), rotary_result="input", heads_last=True)
    bias = fields.flag("attention_bias", False)
    block = llama_block(fields, attention, qkv_bias=bias, out_bias=bias)
    return replace(block, norms=block.norms + wide_head_norms(attention), reads_stream=True)


def read_smollm3(fields: ConfigFields) -> ModelSpec:
    """``smollm3``: every fourth layer without rotary positions, tied head."""
    n_layers = fields.layers("num_hidden_layers")
    with_rope = _rope_layers(fields, n_layers)
    window = fields.optional_integer("sliding_window") if fields.flag("use_sliding_window", False) else None
    default_types = [FULL if window is None or rope else SLIDING for rope in with_rope]
    windows = layer_windows(fields, n_layers, window, default_types)
    block = _biased_block(fields, attention_of(fields, kv_default=4))
    without_rope = replace(block, attention=replace(block.attention, position="none"))
    variants = {
        (rope, tokens): with_windows(block if rope else without_rope, [tokens])[0]
        for rope, tokens in dict.fromkeys(zip(with_rope, windows, strict=True))
    }
    blocks = [variants[key] for key in zip(with_rope, windows, strict=True)]
    return decoder(fields, blocks, tied_default=True)


def _rope_layers(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Despite its name a 1 in ``no_rope_layers`` means that the layer has rotary positions
    (configuration_smollm3.py).
    """
    listed = fields.integers("no_rope_layers")
    if fields.has("no_rope_layers"):
        if len(listed) < n_layers:
            raise fields.fail(f"no_rope_layers names {len(listed)} layers, num_hidden_layers is {n_layers}")
        return [bool(value) for value in listed[:n_layers]]
    interval = fields.integer("no_rope_layer_interval", default=4)
    return [(index + 1) % interval != 0 for index in range(n_layers)]


READERS = {
    "llama": read_llama,
    "granite": read_granite,
    "mistral": read_mistral,
    "qwen2": read_qwen2,
    "qwen3": read_qwen3,
    "olmo2": read_olmo2,
    "olmo3": read_olmo3,
    "smollm3": read_smollm3,
}
