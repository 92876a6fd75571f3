"""LFM2: most layers mix tokens by a short convolution between two gates, the others by attention.

Module names, shapes and defaults are those of Transformers 5.23 (``models/<model_type>/modeling_*.py`` and
``configuration_*.py`` of ``lfm2`` and ``lfm2_moe``).  A default named here is the default of that
configuration class.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, head_norms
from planner.catalog.architectures.mixtures.moe_family import experts_of
from planner.catalog.architectures.parts import fused_experts, rms, router, separate_qkv
from planner.catalog.architectures.windows import check_kinds
from planner.domain.attention_shape import NO_ATTENTION
from planner.domain.mixer_specs import ShortConvSpec
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec

_CONV, _FULL = "conv", "full_attention"


def read_lfm2(fields: ConfigFields) -> ModelSpec:
    """``lfm2``: query and key norms over each head;
    a gated feed-forward part whose width is worked out from another one.
    """
    hidden, width = fields.integer("hidden_size"), _width(fields)
    dense = MlpSpec(width, gated=True, activation="silu"), _gated(hidden, width)
    kinds = _layer_types(fields)
    return _decoder(fields, [_block(fields, kind, *dense) for kind in kinds])


def read_lfm2_moe(fields: ConfigFields) -> ModelSpec:
    """``lfm2_moe``: experts in all layers but the first ``num_dense_layers``.

    ``expert_bias`` of each layer is a buffer, not a parameter.
    """
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size", default=7168)
    dense = MlpSpec(width, gated=True, activation="silu"), _gated(hidden, width)
    n_experts = fields.integer("num_experts", default=32)
    top_k = fields.integer("num_experts_per_tok", default=4)
    mlp = experts_of(fields, fields.integer("moe_intermediate_size", default=1792), n_experts, top_k)
    mlp = replace(mlp, router="sigmoid_input")
    sparse = mlp, (router(hidden, n_experts), *fused_experts(hidden, mlp))
    n_dense = fields.count("num_dense_layers", default=2)
    return _decoder(
        fields,
        [
            _block(fields, kind, *(dense if index < n_dense else sparse))
            for index, kind in enumerate(_layer_types(fields))
        ],
    )


def _gated(hidden: int, width: int) -> tuple[LinearSpec, ...]:
    inner = tuple(LinearSpec(name, "mlp", hidden, width, "mlp_in") for name in ("w1", "w3"))
    return (*inner, LinearSpec("w2", "mlp", width, hidden, "mlp_mid"))


def _block(fields: ConfigFields, kind: str, mlp: MlpSpec, linears: tuple[LinearSpec, ...]) -> BlockSpec:
    hidden = fields.integer("hidden_size")
    norms = (rms(hidden, copies=2),)
    if kind == _FULL:
        attention = attention_of(fields, kv_default=8)
        query, key, value, out = separate_qkv(attention, hidden)
        projections = (query, key, value, replace(out, name="out_proj"))
        return BlockSpec(attention, mlp, (*projections, *linears), (*norms, *head_norms(attention)))
    mixer = ShortConvSpec(hidden, fields.integer("conv_L_cache", default=3), fields.flag("conv_bias", False))
    inner = LinearSpec("in_proj", "mixer", hidden, 3 * hidden, "attn_in", mixer.bias)
    outer = LinearSpec("out_proj", "mixer", hidden, hidden, "attn_out", mixer.bias)
    block = BlockSpec(NO_ATTENTION, mlp, (inner, outer, *linears), norms)
    return replace(block, mixer=mixer, extra_params=hidden * (mixer.kernel + int(mixer.bias)))


def _decoder(fields: ConfigFields, blocks: list[BlockSpec]) -> ModelSpec:
    tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))
    return replace(decoder(fields, blocks), tied=tied)


def _width(fields: ConfigFields) -> int:
    """Two thirds of the given width, times a factor, rounded up to a multiple."""
    width = fields.integer("block_ff_dim", "intermediate_size", default=12288)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(2 * width / 3)
    factor = fields.data.get("block_ffn_dim_multiplier", 1.0)
    if factor is None:
        return width
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 100:
        raise fields.fail("field 'block_ffn_dim_multiplier' must be a number above 0 and at most 100")
    multiple = fields.integer("block_multiple_of", default=256)
    return -(-int(factor * width) // multiple) * multiple


def _layer_types(fields: ConfigFields) -> tuple[str, ...]:
    """Kinds of all layers: listed, or those that ``full_attn_idxs`` names attend (all where it is absent)."""
    n_layers = fields.layers("num_hidden_layers")
    full = set(fields.integers("full_attn_idxs")) if fields.has("full_attn_idxs") else set(range(n_layers))
    types = fields.texts("layer_types") or tuple(
        _FULL if index in full else _CONV for index in range(n_layers)
    )
    check_kinds(fields, types, n_layers, (_CONV, _FULL))
    return types


READERS = {"lfm2": read_lfm2, "lfm2_moe": read_lfm2_moe}
