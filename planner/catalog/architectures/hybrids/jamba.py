"""Jamba: layers of Mamba 1, every eighth with attention instead, and experts in every other one.

Module names, shapes and defaults are those of Transformers 5.23 (``models/jamba/modeling_jamba.py`` and
``configuration_jamba.py``).  A default named here is the default of that configuration class.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder
from planner.catalog.architectures.mixtures.moe_family import experts_of
from planner.catalog.architectures.parts import (
    fused_experts,
    gated_mlp,
    rms,
    router,
    separate_qkv,
)
from planner.domain.attention_shape import NO_ATTENTION, AttentionSpec
from planner.domain.mixer_specs import Mamba1Spec
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec


def _mixer(fields: ConfigFields) -> Mamba1Spec:
    hidden = fields.integer("hidden_size")
    is_auto = fields.data.get("mamba_dt_rank", "auto") == "auto"
    return Mamba1Spec(
        width=fields.integer("mamba_expand", default=2) * hidden,
        state=fields.integer("mamba_d_state", default=16),
        rank=-(-hidden // 16) if is_auto else fields.integer("mamba_dt_rank"),
        kernel=fields.integer("mamba_d_conv", default=4),
        conv_bias=fields.flag("mamba_conv_bias", True),
    )


def _mixer_linears(fields: ConfigFields, spec: Mamba1Spec) -> tuple[LinearSpec, ...]:
    hidden, bias = fields.integer("hidden_size"), fields.flag("mamba_proj_bias", False)
    return (
        LinearSpec("in_proj", "mixer", hidden, 2 * spec.width, "mixer_in", bias),
        LinearSpec("x_proj", "mixer", spec.width, spec.rank + 2 * spec.state, "mixer_mid"),
        LinearSpec("dt_proj", "mixer", spec.rank, spec.width, "mixer_step", bias=True),
        LinearSpec("out_proj", "mixer", spec.width, hidden, "mixer_out", bias),
    )


def _is_at(fields: ConfigFields, index: int, what: str, period: int, offset: int) -> bool:
    """Whether layer ``index`` is one of those that come every so many layers."""
    return index % fields.integer(f"{what}_layer_period", default=period) == fields.count(
        f"{what}_layer_offset", offset
    )


def read_jamba(fields: ConfigFields) -> ModelSpec:
    """``jamba``: attention without positions; norms over steps, B and C of each mixer."""
    hidden, n_layers = fields.integer("hidden_size", default=4096), fields.layers("num_hidden_layers")
    attention = replace(attention_of(fields, kv_default=8, heads_default=32), position="none")
    spec, n_experts = _mixer(fields), fields.integer("num_experts", default=16)
    inner = (
        rms(hidden, copies=2),
        *(NormSpec("rms", width, on="mixer") for width in (spec.rank, spec.state, spec.state)),
    )
    first: dict[
        bool, tuple[AttentionSpec, Mamba1Spec | None, tuple[LinearSpec, ...], tuple[NormSpec, ...], int]
    ] = {
        True: (attention, None, separate_qkv(attention, hidden), (rms(hidden, copies=2),), 0),
        False: (NO_ATTENTION, spec, _mixer_linears(fields, spec), inner, spec.param_count),
    }
    second = {routes: _feed_forward(fields, n_experts if routes else 1) for routes in (True, False)}
    blocks = {
        (attends, routes): BlockSpec(
            mixing, mlp, (*linears, *matrices), norms, extra_params=extra, mixer=mixer
        )
        for attends, (mixing, mixer, linears, norms, extra) in first.items()
        for routes, (mlp, matrices) in second.items()
    }
    layers = [
        blocks[_is_at(fields, index, "attn", 8, 4), _is_at(fields, index, "expert", 2, 1)]
        for index in range(n_layers)
    ]
    return decoder(fields, layers)


def _feed_forward(fields: ConfigFields, n_experts: int) -> tuple[MlpSpec, tuple[LinearSpec, ...]]:
    hidden = fields.integer("hidden_size", default=4096)
    width = fields.integer("intermediate_size", default=14336)
    if n_experts == 1:
        return MlpSpec(width, gated=True, activation=fields.text("hidden_act", "silu")), gated_mlp(
            hidden, width
        )
    mlp = experts_of(fields, width, n_experts, fields.integer("num_experts_per_tok", default=2))
    return mlp, (router(hidden, n_experts, name="router"), *fused_experts(hidden, mlp))


READERS = {"jamba": read_jamba}
