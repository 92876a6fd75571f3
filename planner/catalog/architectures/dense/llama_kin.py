"""Dense architectures close to Llama's block, each with parts of its own: StarCoder2, Seed-OSS,
Arcee, Ministral.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, llama_block, with_windows
from planner.catalog.architectures.parts import layer_norm, plain_mlp, rms, separate_qkv
from planner.catalog.architectures.windows import FULL, SLIDING, layer_windows, window_field
from planner.domain.model import BlockSpec, MlpSpec, ModelSpec, NormSpec


def read_starcoder2(fields: ConfigFields) -> ModelSpec:
    """``starcoder2``: layer norms, two matrices around the activation, bias everywhere, dropouts;
    tied head.
    """
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    bias, drops = fields.flag("use_bias", True), fields.is_positive("residual_dropout", 0.0)
    attention = attention_of(fields, window_tokens=window_field(fields, None), kv_default=2)
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("hidden_act", "gelu_pytorch_tanh")),
        linears=separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias)
        + plain_mlp(hidden, width, ("c_fc", "c_proj"), bias=bias),
        norms=(layer_norm(hidden, copies=2),),
        dropouts=2 * int(drops),
        drops_inside=True,
    )
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"), tied_default=True)
    drops = fields.is_positive("embedding_dropout", 0.0)
    return replace(spec, final_norms=(layer_norm(hidden),), embedding_dropout=drops)


def read_seed_oss(fields: ConfigFields) -> ModelSpec:
    """``seed_oss``: Llama's block with bias in query, key and value,
    and dropout behind both branches (0.1 when absent).
    """
    attention = attention_of(fields, kv_default=8, head_dim_default=128)
    attention = replace(attention, dropout=fields.is_positive("attention_dropout", 0.1))
    block = llama_block(
        fields,
        attention,
        qkv_bias=fields.flag("attention_bias", True),
        out_bias=fields.flag("attention_out_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
    )
    block = replace(block, dropouts=2 * int(fields.is_positive("residual_dropout", 0.1)), drops_inside=True)
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


def read_arcee(fields: ConfigFields) -> ModelSpec:
    """``arcee``: Llama's attention, and a feed-forward part of two matrices around a squared ReLU."""
    block = relu2_block(fields, rms(fields.integer("hidden_size"), copies=2), bias=False)
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


def relu2_block(fields: ConfigFields, norms: NormSpec, *, bias: bool) -> BlockSpec:
    """Llama's attention and two matrices around a squared ReLU; ``bias``: of all where the config says
    nothing.
    """
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    attention, of_attention = attention_of(fields), fields.flag("attention_bias", bias)
    return BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("hidden_act", "relu2")),
        linears=separate_qkv(attention, hidden, qkv_bias=of_attention, out_bias=of_attention)
        + plain_mlp(hidden, width, ("up_proj", "down_proj"), bias=fields.flag("mlp_bias", bias)),
        norms=(norms,),
    )


def read_ministral(fields: ConfigFields) -> ModelSpec:
    """``ministral``: Mistral's block with a window on the layers that ``layer_types`` names,
    on all where it is absent.
    """
    if not fields.has("head_dim"):
        raise fields.fail(
            "field 'head_dim' is missing, without which Transformers cannot build this architecture"
        )
    n_layers, window = fields.layers("num_hidden_layers"), window_field(fields, 4096)
    windows = layer_windows(fields, n_layers, window, [FULL if window is None else SLIDING] * n_layers)
    return decoder(fields, with_windows(llama_block(fields, attention_of(fields, kv_default=8)), windows))


READERS = {
    "starcoder2": read_starcoder2,
    "seed_oss": read_seed_oss,
    "arcee": read_arcee,
    "ministral": read_ministral,
}
