"""StableLM, Cohere and Nemotron: Llama's matrices with layer norms, optionally in parallel branches.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder
from planner.catalog.architectures.older.gpt_family import bare_model, even_heads
from planner.catalog.architectures.parts import (
    gated_mlp,
    layer_norm,
    plain_mlp,
    rotary_width,
    separate_qkv,
    token_embedding,
    with_scaling,
)
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, MlpSpec, ModelSpec, NormSpec


def _grouped_heads(
    fields: ConfigFields, hidden: int, *, default_kv_heads: int | None = None
) -> AttentionSpec:
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=default_kv_heads or heads)
    if heads % kv_heads:
        raise fields.fail(f"num_attention_heads {heads} is not divisible by num_key_value_heads {kv_heads}")
    return replace(even_heads(fields, hidden, heads), n_kv_heads=kv_heads)


def read_stablelm(fields: ConfigFields) -> ModelSpec:
    """``stablelm``: StableLM 3B and StableLM 2; with ``use_parallel_residual`` one norm feeds both branches.

    ``qk_layernorm`` is one bias-free norm module per head, so its copies count heads.  An absent
    ``num_key_value_heads`` means 32, the default of the class, not the number of heads.
    """
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    # Rotary positions turn a quarter of each head (partial_rotary_factor), and the parts are concatenated.
    attention = replace(_grouped_heads(fields, hidden, default_kv_heads=32), joined_rotary=True)
    attention = replace(
        attention,
        rotary_width=rotary_width(fields, attention.head_dim, 0.25),
        rotary_join="forward",
        heads_last=True,
    )
    parallel = fields.flag("use_parallel_residual", False)
    norms: tuple[NormSpec, ...] = (layer_norm(hidden, copies=1 if parallel else 2),)
    if fields.flag("qk_layernorm", False):
        per_head = NormSpec("layer", attention.head_dim, copies=attention.n_heads, on="heads")
        norms += (per_head, replace(per_head, copies=attention.n_kv_heads))
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation=fields.text("hidden_act", "silu")),
        linears=separate_qkv(attention, hidden, qkv_bias=fields.flag("use_qkv_bias", False))
        + gated_mlp(hidden, width),
        norms=norms,
        parallel=parallel,
        branch_sum="stream",
        keeps_attended=True,
        keeps_normed=("layer", "part"),
    )
    table = token_embedding(fields, hidden)
    spec = bare_model(fields, [block] * fields.layers("num_hidden_layers"), table)
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", False),
        max_position_tokens=fields.integer("max_position_embeddings", default=4096),
        final_norms=(layer_norm(hidden),),
    )


def read_cohere(fields: ConfigFields) -> ModelSpec:
    """``cohere``: Command R; both branches behind one bias-free norm, tied head.

    ``use_qk_norm`` keeps a weight for every feature of every head (shape heads by head size).
    """
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    attention = replace(_grouped_heads(fields, hidden), rotary_result="fp32", head_norms_last=True)
    bias = fields.flag("attention_bias", False)
    norms: tuple[NormSpec, ...] = (layer_norm(hidden, bias=False),)
    if fields.flag("use_qk_norm", False):
        per_head = NormSpec("layer", attention.head_dim, copies=attention.n_heads, on="heads")
        norms += (per_head, replace(per_head, copies=attention.n_kv_heads))
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation=fields.text("hidden_act", "silu")),
        linears=separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias) + gated_mlp(hidden, width),
        norms=norms,
        parallel=True,
        branch_sum="stream",
    )
    table = token_embedding(fields, hidden)
    spec = bare_model(fields, [block] * fields.layers("num_hidden_layers"), table)
    return replace(
        with_scaling(spec, "centred"),
        tied=fields.flag("tie_word_embeddings", True),
        max_position_tokens=fields.integer("max_position_embeddings", default=8192),
        final_norms=(replace(layer_norm(hidden, bias=False), scaling="centred"),),
        scales_logits=True,
    )


def read_nemotron(fields: ConfigFields) -> ModelSpec:
    """``nemotron``: half of each head is turned, no gate, norms in the dtype of autocast."""
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    attention = attention_of(fields)
    attention = replace(
        attention, joined_rotary=True, rotary_width=rotary_width(fields, attention.head_dim, 0.5)
    )
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("hidden_act", "relu2")),
        linears=separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias)
        + plain_mlp(hidden, width, ("up_proj", "down_proj"), bias=mlp_bias),
        norms=(layer_norm(hidden, copies=2),),
    )
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"))
    return with_scaling(replace(spec, final_norms=(layer_norm(hidden),)), "autocast")


READERS = {"nemotron": read_nemotron, "stablelm": read_stablelm, "cohere": read_cohere}
