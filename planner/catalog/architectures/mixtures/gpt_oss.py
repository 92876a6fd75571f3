"""gpt-oss 20B and 120B.

Module names, shapes and defaults are those of Transformers 5.23 (``models/gpt_oss/modeling_gpt_oss.py``).
The checkpoints store the experts in MXFP4; what is described here is the module with all weights in 16-bit,
as training loads it.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, with_windows
from planner.catalog.architectures.mixtures.moe_family import experts_of
from planner.catalog.architectures.parts import fused_experts, rms, router, separate_qkv, with_scaling
from planner.catalog.architectures.windows import alternating_types, layer_windows, window_field
from planner.domain.model import BlockSpec, ModelSpec


def read_gpt_oss(fields: ConfigFields) -> ModelSpec:
    """``gpt_oss``: biases everywhere, a learned sink per head, every other layer local,
    experts and router with bias.
    """
    hidden, n_layers = fields.integer("hidden_size"), fields.layers("num_hidden_layers")
    attention = replace(
        attention_of(fields, heads_default=64, kv_default=8, head_dim_default=64),
        sinks=True,
        rotary_form="crossed",
    )
    bias = fields.flag("attention_bias", True)
    n_experts = fields.integer("num_local_experts", "num_experts", default=128)
    mlp = experts_of(
        fields,
        fields.integer("intermediate_size"),
        n_experts,
        fields.integer("num_experts_per_tok", default=4),
    )
    # The experts clamp gate and up and write their gate out, whatever ``hidden_act`` says
    # (GptOssExperts._apply_gate).
    mlp = replace(mlp, activation="clamped_swiglu", router="chosen")
    block = BlockSpec(
        attention=attention,
        mlp=mlp,
        linears=(
            *separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias),
            router(hidden, n_experts, bias=True, name="router"),
            *fused_experts(hidden, mlp, bias=True),
        ),
        norms=(rms(hidden, copies=2),),
        extra_params=attention.n_heads,
    )
    windows = layer_windows(fields, n_layers, window_field(fields, 128), alternating_types(n_layers, 2))
    return with_scaling(decoder(fields, with_windows(block, windows)), "wide")


READERS = {"gpt_oss": read_gpt_oss}
