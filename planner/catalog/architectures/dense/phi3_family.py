"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini.

Module names, shapes and defaults are those of Transformers 5.23 (``models/phi3/modeling_phi3.py``).
Phi-3-small (``phi3small``, block-sparse attention) and the mixture (``phimoe``) are other architectures.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder
from planner.catalog.architectures.parts import fused_gated_mlp, fused_qkv, rms, rotary_width
from planner.domain.model import BlockSpec, MlpSpec, ModelSpec


def read_phi3(fields: ConfigFields) -> ModelSpec:
    """``phi3``: Llama's block with ``qkv_proj`` and ``gate_up_proj`` each one matrix, no bias anywhere."""
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    attention = attention_of(fields, window_tokens=fields.optional_integer("sliding_window"))
    attention = replace(attention, fused_qkv=True, fused_parts="slices", joined_rotary=True)
    attention = replace(
        attention, rotary_width=rotary_width(fields, attention.head_dim, 1.0), rotary_join="inline"
    )
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation=fields.text("hidden_act", "silu")),
        # Phi3Attention makes the output projection first.
        linears=fused_qkv(attention, hidden, ("qkv_proj", "o_proj"), biases=(False, False))[::-1]
        + fused_gated_mlp(hidden, width),
        norms=(rms(hidden, copies=2),),
    )
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


READERS = {"phi3": read_phi3}
