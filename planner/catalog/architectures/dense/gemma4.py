"""Gemma 4: local and global layers of different heads, keys that are values in the global ones,
experts beside a dense part.

Module names, shapes and defaults are those of Transformers 5.23 (``models/gemma4``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.gemma3n import Keys, keys_of
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, head_norms
from planner.catalog.architectures.parts import (
    fused_experts,
    gated_mlp,
    rms,
    separate_qkv,
    with_scaling,
)
from planner.catalog.architectures.windows import alternating_types, layer_windows
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, EmbeddingSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec
from planner.errors import NotModelledError

_PERIOD = 6
_ACTIVATION = "gelu_pytorch_tanh"


def read_gemma4_text(fields: ConfigFields) -> ModelSpec:
    """``gemma4_text``: the dense models and those with experts.

    The smaller ones give each layer inputs of its own, and their last layers take keys from those before.
    Ignored: these keys and values, of one layer of each kind, while backward is in the last layers.

    Raises:
        NotModelledError: attention that sees what comes behind.
    """
    if fields.data.get("use_bidirectional_attention") == "all":
        raise NotModelledError(f"{fields.where}: Gemma 4 that sees what comes behind is not modelled")
    n_layers = fields.layers("num_hidden_layers")
    window = fields.integer("sliding_window", default=512)
    windows = layer_windows(fields, n_layers, window, alternating_types(n_layers, _PERIOD))
    windows[-1] = None
    n_own = n_layers - fields.count("num_kv_shared_layers")
    kinds = list(zip(windows, keys_of(windows, n_own), strict=True))
    blocks = {each: _block(fields, *each) for each in dict.fromkeys(kinds)}
    layers = [blocks[each] for each in kinds]
    spec = decoder(
        ConfigFields({"vocab_size": 262_144, **fields.data}, fields.where), layers, tied_default=True
    )
    spec = with_scaling(_with_inputs(fields, spec), "in_fp32")
    return replace(spec, embedding_scale="table", logit_softcap=fields.has("final_logit_softcapping"))


def _attention(fields: ConfigFields, window: int | None) -> AttentionSpec:
    """Global layers have heads of their own size, whose keys may be the values, too."""
    local = attention_of(fields, kv_default=4, head_dim_default=256)
    local = replace(local, window_tokens=window)
    if window is not None:
        return local
    size = fields.integer("global_head_dim", default=512)
    one_product = fields.flag("attention_k_eq_v", False)
    shared = fields.optional_integer("num_global_key_value_heads") if one_product else None
    heads = shared or local.n_kv_heads
    return replace(local, n_kv_heads=heads, head_dim=size, value_head_dim=size, key_is_value=one_product)


def _block(fields: ConfigFields, window: int | None, keys: Keys) -> BlockSpec:
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    attention, bias = _attention(fields, window), fields.flag("attention_bias", False)
    linears = separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias)
    borrows_keys = keys == "borrowed"
    attention = replace(attention, lends_keys=keys == "lent")
    if borrows_keys:
        attention = replace(attention, key_is_value=False, borrows_keys=True)
        width *= 2 if fields.flag("use_double_wide_mlp", False) else 1
    left_out = ("k_proj", "v_proj") if borrows_keys else ("v_proj",) if attention.key_is_value else ()
    linears = tuple(each for each in linears if each.name not in left_out)
    of_values = NormSpec(
        "rms", attention.head_dim, weight=False, on="heads", rows_per_token=attention.n_kv_heads
    )
    mlp = MlpSpec(width, gated=True, activation=fields.text("hidden_activation", _ACTIVATION))
    of_heads = head_norms(attention)[:1] if borrows_keys else (*head_norms(attention), of_values)
    block = BlockSpec(attention, mlp, linears + gated_mlp(hidden, width), (rms(hidden, copies=4), *of_heads))
    if inputs := fields.count("hidden_size_per_layer_input", default=256):
        return _with_layer_input(fields, block, hidden, inputs)
    return _with_experts(fields, block, hidden) if fields.flag("enable_moe_block", False) else block


def _with_layer_input(fields: ConfigFields, block: BlockSpec, hidden: int, inputs: int) -> BlockSpec:
    if fields.flag("enable_moe_block", False):
        raise NotModelledError(
            f"{fields.where}: Gemma 4 with experts and inputs of each layer is not modelled"
        )
    linears = (
        LinearSpec("per_layer_input_gate", "mlp", hidden, inputs, "layer_gate"),
        LinearSpec("per_layer_projection", "mlp", inputs, hidden, "layer_mid"),
    )
    return replace(
        block,
        linears=block.linears + linears,
        norms=(rms(hidden, copies=5), *block.norms[1:]),
        layer_inputs_width=inputs * fields.layers("num_hidden_layers"),
    )


def _with_inputs(fields: ConfigFields, spec: ModelSpec) -> ModelSpec:
    """The table of the inputs of all layers, and what makes them of the stream."""
    inputs, hidden = fields.count("hidden_size_per_layer_input", default=256), spec.hidden_size
    if not inputs:
        return spec
    width = inputs * spec.n_layers
    rows = fields.integer("vocab_size_per_layer_input", default=262_144)
    table = EmbeddingSpec("embed_tokens_per_layer", rows, width, per_layer=True)
    last = NormSpec("rms", inputs, on="layer_inputs", rows_per_token=spec.n_layers)
    return replace(
        spec,
        extra_embeddings=(table,),
        extra_linears=(LinearSpec("per_layer_model_projection", "mlp", hidden, width, "layer_inputs"),),
        final_norms=(*spec.final_norms, last),
    )


def _with_experts(fields: ConfigFields, block: BlockSpec, hidden: int) -> BlockSpec:
    """Experts that read the stream before the dense part, behind norms of their own;
    the router scales it and each expert's weight.
    """
    n_experts, top_k = fields.integer("num_experts"), fields.integer("top_k_experts")
    if top_k > n_experts:
        raise fields.fail(f"top_k_experts {top_k} is above num_experts {n_experts}")
    mlp = replace(
        block.mlp,
        width=fields.integer("moe_intermediate_size"),
        n_experts=n_experts,
        top_k=top_k,
        shared_width=block.mlp.width,
        router="beside",
    )
    chooser = LinearSpec("proj", "router", hidden, n_experts, "mlp_in")
    return replace(
        block,
        mlp=mlp,
        linears=(*block.linears, chooser, *fused_experts(hidden, mlp)),
        norms=(rms(hidden, copies=7), *block.norms[1:]),
        extra_params=hidden + n_experts,
    )


def read_gemma4_unified_text(fields: ConfigFields) -> ModelSpec:
    """``gemma4_unified_text``: the dense decoder, without inputs of each layer."""
    fixed = {"hidden_size_per_layer_input": 0, "enable_moe_block": False}
    return read_gemma4_text(ConfigFields({"sliding_window": 1024, **fields.data, **fixed}, fields.where))


READERS = {"gemma4_text": read_gemma4_text, "gemma4_unified_text": read_gemma4_unified_text}
