"""Dense architectures that vary attention: Command R7B, EXAONE 4, Hunyuan, OLMo 1 and Ministral 3.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import (
    attention_of,
    decoder,
    head_norms,
    llama_block,
    with_windows,
)
from planner.catalog.architectures.dense.stablelm import read_cohere
from planner.catalog.architectures.parts import group_layers, plain_mlp, rms, separate_qkv
from planner.catalog.architectures.windows import alternating_types, layer_windows, window_field
from planner.domain.model import BlockSpec, MlpSpec, ModelSpec, NormSpec


def turned_in_windows(block: BlockSpec, windows: Sequence[int | None]) -> list[BlockSpec]:
    """``block`` once per layer: with rotary positions where a window is,
    without any where attention is full.
    """
    full = replace(block, attention=replace(block.attention, position="none"))
    return [with_windows(block if window else full, [window])[0] for window in windows]


def read_cohere2(fields: ConfigFields) -> ModelSpec:
    """``cohere2``: Command R7B; Command R's block, three layers of four with a window,
    the fourth without positions.
    """
    n_layers = fields.layers("num_hidden_layers")
    spec = read_cohere(ConfigFields({**fields.data, "use_qk_norm": False}, fields.where))
    types = alternating_types(n_layers, fields.integer("sliding_window_pattern", default=4))
    windows = layer_windows(fields, n_layers, window_field(fields, 4096), types)
    [group] = spec.groups
    return replace(spec, groups=group_layers(turned_in_windows(group.block, windows)))


def read_exaone4(fields: ConfigFields) -> ModelSpec:
    """``exaone4``: norms behind both branches as in OLMo 2, over each head as in Qwen3;
    positions in windows only.

    Without a window every layer attends fully and has rotary positions.
    """
    attention = replace(attention_of(fields, kv_default=32), head_norms_last=True)
    block = llama_block(fields, attention)
    block = replace(block, norms=block.norms + head_norms(attention), reads_stream=True)
    n_layers = fields.layers("num_hidden_layers")
    return decoder(fields, in_exaone_windows(fields, [block] * n_layers))


def in_exaone_windows(fields: ConfigFields, blocks: Sequence[BlockSpec]) -> list[BlockSpec]:
    """``blocks``, each in its layer's window; without a window all of them as they are."""
    window = window_field(fields, 4096)
    if window is None:
        return list(blocks)
    # Beside layer_types the pattern may be a text ("LLLG"), which nothing reads.
    period = 4 if fields.has("layer_types") else fields.integer("sliding_window_pattern", default=4)
    windows = layer_windows(fields, len(blocks), window, alternating_types(len(blocks), period))
    return [turned_in_windows(block, [each])[0] for block, each in zip(blocks, windows, strict=True)]


def read_hunyuan(fields: ConfigFields) -> ModelSpec:
    """``hunyuan_v1_dense``: Llama's block; query and key norms run when both have been turned."""
    bias = fields.flag("attention_bias", False)
    attention = replace(attention_of(fields), head_norms_turned=True)
    block = llama_block(fields, attention, qkv_bias=bias, out_bias=bias)
    block = replace(block, norms=block.norms + head_norms(attention))
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


def read_olmo(fields: ConfigFields) -> ModelSpec:
    """``olmo``: Llama's block with layer norms that have no weights; ``clip_qkv`` limits query,
    key and value in place.
    """
    hidden, bias = fields.integer("hidden_size"), fields.flag("attention_bias", False)
    attention = replace(attention_of(fields), rotary_result="input", heads_last=True)
    attention = replace(attention, clips_products=fields.has("clip_qkv"))
    norm = NormSpec("layer", hidden, weight=False, scaling="narrowed")
    block = replace(
        llama_block(fields, attention, qkv_bias=bias, out_bias=bias), norms=(replace(norm, copies=2),)
    )
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"))
    return replace(spec, final_norms=(norm,))


def read_ministral3(fields: ConfigFields) -> ModelSpec:
    """``ministral3``: Mistral's block, whose query is multiplied by a number for each position."""
    attention = attention_of(
        fields, window_tokens=window_field(fields, None), kv_default=8, head_dim_default=128
    )
    block = llama_block(fields, replace(attention, scales_turned_query=True))
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


def read_apertus(fields: ConfigFields) -> ModelSpec:
    """``apertus``: norms over each head,
    and two matrices around an activation with two trained numbers (xIELU).
    """
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    attention = replace(attention_of(fields), head_norms_last=True)
    bias = fields.flag("attention_bias", False)
    activation = fields.text("hidden_act", "xielu")
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=activation),
        linears=separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias)
        + plain_mlp(hidden, width, ("up_proj", "down_proj"), bias=False),
        norms=(rms(hidden, copies=2), *head_norms(attention)),
        extra_params=2 if activation == "xielu" else 0,
    )
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


def read_ernie(fields: ConfigFields) -> ModelSpec:
    """``ernie4_5``: Llama's block; positions turn pairs, in fp32, with tables that each layer repeats."""
    bias = fields.flag("use_bias", False)
    attention = attention_of(fields, kv_default=2, head_dim_default=128)
    attention = replace(attention, rotary_form="repeated_pairs", rotary_result="floated")
    block = llama_block(fields, attention, qkv_bias=bias, out_bias=bias, mlp_bias=bias)
    return decoder(fields, [block] * fields.layers("num_hidden_layers"), tied_default=True)


READERS = {
    "ernie4_5": read_ernie,
    "apertus": read_apertus,
    "cohere2": read_cohere2,
    "exaone4": read_exaone4,
    "hunyuan_v1_dense": read_hunyuan,
    "olmo": read_olmo,
    "ministral3": read_ministral3,
}
