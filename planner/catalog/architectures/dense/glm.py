"""GLM-4 as Transformers ships it: ``glm`` (GLM-4-9B), ``glm4`` (GLM-4-0414) and the decoder of GLM-4.1V.

Module names, shapes and defaults are those of Transformers 5.23 (``models/glm/modeling_glm.py``,
``models/glm4/modeling_glm4.py`` and their configuration classes).  The checkpoints' own code is in
``remote_code``.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.older.gpt_family import bare_model
from planner.catalog.architectures.parts import (
    fused_gated_mlp,
    rms,
    rotary_width,
    separate_qkv,
    token_embedding,
)
from planner.domain.attention_shape import AttentionSpec, RotaryForm
from planner.domain.model import BlockSpec, MlpSpec, ModelSpec

_GLM4V = {
    "hidden_size": 4096,
    "intermediate_size": 13_696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "vocab_size": 151_552,
    "max_position_embeddings": 32_768,
}
_GLM_OCR = {
    "vocab_size": 59_392,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}


def read_glm(fields: ConfigFields) -> ModelSpec:
    """``glm``: few key and value heads with biased projections, gate and up in one matrix."""
    return _glm(fields, norms_per_layer=2)


def read_glm4(fields: ConfigFields) -> ModelSpec:
    """``glm4``: the same block with a norm before and after each branch."""
    return _glm(fields, norms_per_layer=4)


def read_glm4v_text(fields: ConfigFields) -> ModelSpec:
    """``glm4v_text``: the decoder of GLM-4.1V, whose positions are written out for all layers at once.

    Queries, keys and values are always biased; whole heads are turned where no field says a share.
    """
    heads = fields.integer("num_attention_heads", default=32)
    fixed = {"attention_bias": True, "head_dim": fields.integer("hidden_size", default=4096) // heads}
    return _seeing(ConfigFields({**_GLM4V, **fields.data, **fixed}, fields.where))


def read_glm_ocr_text(fields: ConfigFields) -> ModelSpec:
    """``glm_ocr_text``: the same without biases, with heads of any width."""
    given = {**_GLM_OCR, **fields.data, "attention_bias": False}
    if not fields.has("head_dim"):
        made = ConfigFields(given, fields.where)
        given["head_dim"] = made.integer("hidden_size") // made.integer("num_attention_heads")
    return _seeing(ConfigFields(given, fields.where))


def _seeing(fields: ConfigFields) -> ModelSpec:
    given = fields.optional_section("rope_parameters").data
    rope = {"rope_parameters": {"partial_rotary_factor": 1.0, **given}}
    if "partial_rotary_factor" in fields.data:
        rope = {}
    return _glm(ConfigFields({**fields.data, **rope}, fields.where), norms_per_layer=4, form="halves")


def _glm(fields: ConfigFields, *, norms_per_layer: int, form: RotaryForm = "repeated_pairs") -> ModelSpec:
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", default=2)
    if heads % kv_heads:
        raise fields.fail(f"num_attention_heads {heads} is not divisible by num_key_value_heads {kv_heads}")
    head_dim = fields.integer("head_dim", default=128)
    attention = AttentionSpec(heads, kv_heads, head_dim, head_dim, joined_rotary=True, rotary_form=form)
    attention = replace(attention, rotary_width=rotary_width(fields, head_dim, 0.5))
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation=fields.text("hidden_act", "silu")),
        linears=separate_qkv(attention, hidden, qkv_bias=fields.flag("attention_bias", True))
        + fused_gated_mlp(hidden, width),
        norms=(rms(hidden, copies=norms_per_layer),),
    )
    table = token_embedding(fields, hidden)
    spec = bare_model(fields, [block] * fields.layers("num_hidden_layers"), table)
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", False),
        max_position_tokens=fields.integer("max_position_embeddings", default=131072),
        final_norms=(rms(hidden),),
    )


READERS = {
    "glm": read_glm,
    "glm4": read_glm4,
    "glm4v_text": read_glm4v_text,
    "glm_ocr_text": read_glm_ocr_text,
}
