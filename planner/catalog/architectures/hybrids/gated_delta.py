"""Qwen3.5 and Qwen3-Next: three layers of the gated delta rule to each one of attention; Qwen3.5 sees, too.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, head_norms, llama_block
from planner.catalog.architectures.mixtures.moe_family import (
    SPLIT_NAMES,
    experts_of,
    shared_experts,
    sparse_layers,
)
from planner.catalog.architectures.parts import (
    fused_experts,
    reached_by_peft,
    rms,
    rotary_width,
    router,
    separate_qkv,
    with_scaling,
)
from planner.catalog.architectures.vision.qwen_vision import qwen3_tower
from planner.catalog.architectures.windows import check_kinds
from planner.domain.attention_shape import NO_ATTENTION, AttentionSpec
from planner.domain.mixer_specs import GatedDeltaSpec
from planner.domain.model import BlockSpec, LinearSpec, ModelSpec, NormSpec

_LINEAR, _FULL = "linear_attention", "full_attention"


def _layer_types(fields: ConfigFields, n_layers: int) -> tuple[str, ...]:
    """Kinds of all layers: listed, or every ``full_attention_interval``-th (4) attends."""
    period = fields.integer("full_attention_interval", default=4)
    types = fields.texts("layer_types") or tuple(
        _LINEAR if (index + 1) % period else _FULL for index in range(n_layers)
    )
    check_kinds(fields, types, n_layers, (_LINEAR, _FULL))
    return types


def _mixer(fields: ConfigFields, *, fused_inputs: bool = False) -> GatedDeltaSpec:
    spec = GatedDeltaSpec(
        key_heads=fields.integer("linear_num_key_heads", default=16),
        value_heads=fields.integer("linear_num_value_heads", default=32),
        key_dim=fields.integer("linear_key_head_dim", default=128),
        value_dim=fields.integer("linear_value_head_dim", default=128),
        kernel=fields.integer("linear_conv_kernel_dim", default=4),
        fused_inputs=fused_inputs,
    )
    if spec.value_heads % spec.key_heads:
        heads = f"linear_num_value_heads {spec.value_heads} is not divisible by linear_num_key_heads"
        raise fields.fail(f"{heads} {spec.key_heads}")
    return spec


def _linear_block(full: BlockSpec, mixer: GatedDeltaSpec, hidden: int) -> BlockSpec:
    """The block ``full`` with the gated delta rule in place of its attention."""
    inputs = {"in_proj_qkv": mixer.conv_width, "in_proj_z": mixer.v_width}
    inputs |= {"in_proj_b": mixer.value_heads, "in_proj_a": mixer.value_heads}
    if mixer.fused_inputs:
        inputs = {"in_proj_qkvz": mixer.conv_width + mixer.v_width, "in_proj_ba": 2 * mixer.value_heads}
    projections = [LinearSpec(name, "attention", hidden, width, "attn_in") for name, width in inputs.items()]
    projections.append(LinearSpec("out_proj", "attention", mixer.v_width, hidden, "attn_out"))
    norms = [norm for norm in full.norms if norm.on == "hidden"]
    norms.append(NormSpec("rms", mixer.value_dim, on="mixer", rows_per_token=mixer.value_heads))
    return replace(
        full,
        attention=NO_ATTENTION,
        mixer=mixer,
        linears=(*projections, *(linear for linear in full.linears if linear.group != "attention")),
        norms=tuple(norms),
        extra_params=mixer.conv_width * mixer.kernel + 2 * mixer.value_heads,
    )


def _gated_attention(fields: ConfigFields, *, kv_default: int) -> AttentionSpec:
    attention = attention_of(fields, kv_default=kv_default, head_dim_default=256)
    attention = replace(attention, output_gate="query", joined_rotary=True)
    return replace(attention, rotary_width=rotary_width(fields, attention.head_dim, 0.25))


def _projections(fields: ConfigFields, attention: AttentionSpec) -> tuple[LinearSpec, ...]:
    """Those of Llama, the query's twice as wide."""
    bias = fields.flag("attention_bias", False)
    linears = separate_qkv(attention, fields.integer("hidden_size"), qkv_bias=bias, out_bias=bias)
    return tuple(
        replace(each, out_features=2 * each.out_features) if each.name == "q_proj" else each
        for each in linears
    )


def _dense_block(fields: ConfigFields, attention: AttentionSpec) -> BlockSpec:
    block = llama_block(fields, attention)
    mlp = tuple(each for each in block.linears if each.group == "mlp")
    return replace(
        block, linears=(*_projections(fields, attention), *mlp), norms=block.norms + head_norms(attention)
    )


def _sparse_block(fields: ConfigFields, attention: AttentionSpec, n_experts: int, top_k: int) -> BlockSpec:
    """Routed experts beside an always-active one behind its own sigmoid gate, as in Qwen2-MoE."""
    hidden, n_experts = fields.integer("hidden_size"), fields.integer("num_experts", default=n_experts)
    shared = fields.integer("shared_expert_intermediate_size", default=512)
    width = fields.integer("moe_intermediate_size", default=512)
    mlp = experts_of(fields, width, n_experts, fields.integer("num_experts_per_tok", default=top_k))
    mlp = replace(mlp, shared_width=shared)
    gate = LinearSpec("shared_expert_gate", "router", hidden, 1, "mlp_in")
    linears = (router(hidden, n_experts), *fused_experts(hidden, mlp), *shared_experts(hidden, shared), gate)
    norms = (rms(hidden, copies=2), *head_norms(attention))
    return BlockSpec(attention, mlp, (*_projections(fields, attention), *linears), norms)


def _hybrid(fields: ConfigFields, fulls: list[BlockSpec], mixer: GatedDeltaSpec) -> ModelSpec:
    """A model of the blocks ``fulls``,
    of which some have the gated delta rule in place of their attention; norms as in Gemma.
    """
    hidden = fields.integer("hidden_size")
    linear = {full: _linear_block(full, mixer, hidden) for full in dict.fromkeys(fulls)}
    pairs = zip(fulls, _layer_types(fields, len(fulls)), strict=True)
    blocks = [full if kind == _FULL else linear[full] for full, kind in pairs]
    return with_scaling(decoder(fields, blocks), "one_plus")


def read_qwen3_5_text(fields: ConfigFields) -> ModelSpec:
    """``qwen3_5_text``: gated delta layers, and attention whose output has a gate."""
    full = _dense_block(fields, _gated_attention(fields, kv_default=4))
    return _hybrid(fields, [full] * fields.layers("num_hidden_layers"), _mixer(fields))


def read_qwen3_5_moe_text(fields: ConfigFields) -> ModelSpec:
    """``qwen3_5_moe_text``: the same, with 8 of 256 experts in every layer.
    PEFT 0.21 has no table of these experts.
    """
    full = _sparse_block(fields, _gated_attention(fields, kv_default=2), 256, 8)
    return _hybrid(fields, [full] * fields.layers("num_hidden_layers"), _mixer(fields))


def read_qwen3_next(fields: ConfigFields) -> ModelSpec:
    """``qwen3_next``: the inputs of gated delta layers are two products;
    10 of 512 experts where no list says otherwise.
    """
    attention, n_layers = _gated_attention(fields, kv_default=2), fields.layers("num_hidden_layers")
    kinds = sparse_layers(fields, n_layers)
    sparse = _sparse_block(fields, attention, 512, 10)
    sparse = replace(sparse, linears=reached_by_peft(sparse.linears, *SPLIT_NAMES))
    dense = sparse
    if not all(kinds):
        dense = _dense_block(fields, attention)
        dense = replace(dense, linears=reached_by_peft(dense.linears, *SPLIT_NAMES))
    return _hybrid(fields, [sparse if kind else dense for kind in kinds], _mixer(fields, fused_inputs=True))


def _with_tower(
    fields: ConfigFields, reader: Callable[[ConfigFields], ModelSpec], model_type: str, text_class: str
) -> ModelSpec:
    """The whole checkpoint; without ``vision_config`` what ``text_class`` loads of it.

    The tower is Qwen3-VL's without what that stacks: ``Qwen3_5VisionModel`` knows no
    ``deepstack_visual_indexes``.
    """
    text = dict(fields.section("text_config").data)
    text.setdefault("model_type", model_type)
    if fields.has("tie_word_embeddings"):
        text["tie_word_embeddings"] = fields.flag("tie_word_embeddings", False)
    spec = reader(ConfigFields(text, f"{fields.where}: text_config"))
    spec = replace(spec, text_class=text_class)
    if not fields.has("vision_config"):
        return spec.text_part()
    tower = qwen3_tower(fields.section("vision_config"), has_deepstack=False)
    return replace(spec, architecture=fields.text("model_type", ""), vision=tower)


def read_qwen3_5(fields: ConfigFields) -> ModelSpec:
    """``qwen3_5``: the multimodal checkpoint."""
    return _with_tower(fields, read_qwen3_5_text, "qwen3_5_text", "Qwen3_5ForCausalLM")


def read_qwen3_5_moe(fields: ConfigFields) -> ModelSpec:
    """``qwen3_5_moe``: likewise."""
    return _with_tower(fields, read_qwen3_5_moe_text, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM")


READERS = {
    "qwen3_5_text": read_qwen3_5_text,
    "qwen3_5_moe_text": read_qwen3_5_moe_text,
    "qwen3_5": read_qwen3_5,
    "qwen3_5_moe": read_qwen3_5_moe,
    "qwen3_next": read_qwen3_next,
}
