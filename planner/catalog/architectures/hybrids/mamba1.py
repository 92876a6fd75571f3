"""Mamba 1 alone: Mamba and Falcon-Mamba.

Module names, shapes and defaults are those of Transformers 5.23
(``models/{mamba,falcon_mamba}/{modeling,configuration}_*.py``). One function reads the weights of ``x_proj``,
``dt_proj`` and ``out_proj`` itself, so an adapter there would be trained by nothing: it is left out.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import decoder
from planner.catalog.architectures.parts import rms
from planner.domain.attention_shape import NO_ATTENTION
from planner.domain.mixer_specs import Mamba1Spec
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec


def read_mamba(fields: ConfigFields) -> ModelSpec:
    """``mamba`` and ``falcon_mamba``, whose norms inside of the mixer have no weights: mixers alone, each
    behind a norm, which add to a stream in fp32.
    """
    hidden, bias = fields.integer("hidden_size"), fields.flag("use_bias", False)
    is_auto = fields.data.get("time_step_rank", "auto") == "auto"
    spec = Mamba1Spec(
        # The configuration overwrites intermediate_size by this.
        width=fields.integer("expand", default=2) * hidden,
        state=fields.integer("state_size", default=16),
        rank=-(-hidden // 16) if is_auto else fields.integer("time_step_rank"),
        kernel=fields.integer("conv_kernel", default=4),
        conv_bias=fields.flag("use_conv_bias", True),
        fused=True,
    )
    linears = (
        LinearSpec("in_proj", "mixer", hidden, 2 * spec.width, "mixer_in", bias),
        LinearSpec("x_proj", "mixer", spec.width, spec.rank + 2 * spec.state, "mixer_mid", adaptable=False),
        LinearSpec("dt_proj", "mixer", spec.rank, spec.width, "mixer_step", bias=True, adaptable=False),
        LinearSpec("out_proj", "mixer", spec.width, hidden, "mixer_out", bias, adaptable=False),
    )
    block = BlockSpec(
        NO_ATTENTION,
        MlpSpec(0, gated=False, activation=fields.text("hidden_act", "silu")),
        linears,
        (rms(hidden),),
        extra_params=spec.param_count,
        mixer=spec,
        wide_stream=fields.flag("residual_in_fp32", True),
    )
    made = decoder(fields, [block] * fields.layers("num_hidden_layers"), tied_default=True)
    return replace(made, token_embedding=replace(made.token_embedding, name="embeddings"), wide_logits=True)


READERS = {"mamba": read_mamba, "falcon_mamba": read_mamba}
