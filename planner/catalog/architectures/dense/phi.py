"""Phi-1, Phi-1.5 and Phi-2 (``phi``).  Names, shapes and defaults: Transformers 5.23,
``models/phi/modeling_phi.py``.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.older.gpt_family import bare_model, even_heads
from planner.catalog.architectures.parts import (
    layer_norm,
    lm_head,
    plain_mlp,
    rotary_width,
    separate_qkv,
    token_embedding,
)
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec


def read_phi(fields: ConfigFields) -> ModelSpec:
    """``phi``: attention and MLP in parallel behind one norm, bias in every matrix, the head included.

    Rotary positions turn only part of each head (``partial_rotary_factor``, default 0.5);
    shapes do not depend on it.
    """
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    attention = _attention(fields, hidden, fields.integer("num_attention_heads"))
    heads, kv_heads = attention.n_heads, attention.n_kv_heads
    query, key, value, _ = separate_qkv(attention, hidden, qkv_bias=True)
    norms: tuple[NormSpec, ...] = (layer_norm(hidden),)
    if fields.flag("qk_layernorm", False):
        per_head = NormSpec("layer", hidden // heads, bias=True, on="heads", rows_per_token=heads)
        norms += (per_head, replace(per_head, rows_per_token=kv_heads))
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("hidden_act", "gelu_new")),
        linears=(
            *(query, key, value),
            LinearSpec("dense", "attention", attention.out_width, hidden, "attn_out", True),
            *plain_mlp(hidden, width, ("fc1", "fc2"), bias=True),
        ),
        norms=norms,
        parallel=True,
        dropouts=2 * int(fields.is_positive("resid_pdrop", 0.0)),
    )
    table = token_embedding(fields, hidden)
    spec = bare_model(
        fields, [block] * fields.layers("num_hidden_layers"), table, lm_head(hidden, table.rows, bias=True)
    )
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", False),
        max_position_tokens=fields.integer("max_position_embeddings", default=2048),
        final_norms=(layer_norm(hidden),),
        embedding_dropout=fields.is_positive("embd_pdrop", 0.0),
        drops_by_module=True,
    )


def _attention(fields: ConfigFields, hidden: int, heads: int) -> AttentionSpec:
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.fail(f"num_attention_heads {heads} is not divisible by num_key_value_heads {kv_heads}")
    shape = even_heads(fields, hidden, heads)
    head_dim = fields.integer("head_dim", default=shape.head_dim)
    return replace(
        shape,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=head_dim,
        joined_rotary=True,
        rotary_width=rotary_width(fields, head_dim, 0.5),
        rotary_join="forward",
        dropout=fields.is_positive("attention_dropout", 0.0),
    )


READERS = {"phi": read_phi}
