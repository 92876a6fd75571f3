"""Models with layers of Mamba 2: Granite 4 H, Bamba, Nemotron-H, Falcon-H1; and Mamba 2 alone.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.  The kernel reads the weight of ``out_proj`` itself, so an
adapter there would be trained by nothing: it is left out.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import MAX_LAYERS, ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, llama_block
from planner.catalog.architectures.mixtures.moe_family import experts_of
from planner.catalog.architectures.parts import (
    fused_experts,
    fused_gated_mlp,
    plain_mlp,
    rms,
    rotary_width,
    router,
    separate_qkv,
    with_scaling,
)
from planner.catalog.architectures.windows import check_kinds
from planner.domain.attention_shape import NO_ATTENTION, AttentionSpec
from planner.domain.mixer_specs import Mamba2Spec
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec
from planner.errors import NotModelledError

_FULL, _MIXED = "full_attention", "linear_attention"
# Names that Transformers 5 turns into others when it reads a configuration (configuration_utils.py
# remap_legacy_layer_types).
_LEGACY = {"attention": _FULL, "mamba": _MIXED}
_NO_MLP = MlpSpec(0, gated=False, activation="silu")


def _heads(fields: ConfigFields, width: int) -> tuple[int, int]:
    """Heads and features of each, which together are ``width``."""
    heads = fields.integer("mamba_n_heads", default=128)
    is_auto = fields.data.get("mamba_d_head", "auto") == "auto"
    head_dim = width // heads if is_auto else fields.integer("mamba_d_head")
    if heads * head_dim != width:
        raise fields.fail(
            f"mamba_n_heads {heads} times mamba_d_head {head_dim} is not the width of the mixer, {width}"
        )
    return heads, head_dim


def _checked(fields: ConfigFields, spec: Mamba2Spec) -> Mamba2Spec:
    if spec.heads % spec.groups:
        raise fields.fail(f"{spec.heads} heads of Mamba are not divisible by their {spec.groups} groups")
    if spec.conv_width % 8:
        raise fields.fail(
            f"the convolution runs over {spec.conv_width} features, and its kernel takes multiples of 8 alone"
        )
    return spec


def _mixer(fields: ConfigFields, width: int) -> Mamba2Spec:
    """The mixer by the names that Bamba, Granite 4 and Falcon-H1 share."""
    heads, head_dim = _heads(fields, width)
    spec = Mamba2Spec(
        heads=heads,
        head_dim=head_dim,
        groups=fields.integer("mamba_n_groups", default=1),
        state=fields.integer("mamba_d_state", default=256),
        kernel=fields.integer("mamba_d_conv", default=4),
        chunk=fields.integer("mamba_chunk_size", default=256),
        conv_bias=fields.flag("mamba_conv_bias", True),
    )
    return _checked(fields, spec)


def _projections(spec: Mamba2Spec, hidden: int, *, in_bias: bool, out_bias: bool) -> tuple[LinearSpec, ...]:
    return (
        LinearSpec("in_proj", "mixer", hidden, spec.joined_width, "mixer_in", in_bias),
        LinearSpec("out_proj", "mixer", spec.width, hidden, "mixer_out", out_bias, adaptable=False),
    )


def _mixer_norms(spec: Mamba2Spec) -> tuple[NormSpec, ...]:
    return (NormSpec("rms", spec.width, on="mixer"),) if spec.normed else ()


def mixed_block(full: BlockSpec, spec: Mamba2Spec, hidden: int, *, bias: bool) -> BlockSpec:
    """The block ``full`` with a mixer in place of its attention."""
    dense = [linear for linear in full.linears if linear.group != "attention"]
    n_before = len(dense) if dense and full.linears[-1].group == "attention" else 0
    return replace(
        full,
        attention=NO_ATTENTION,
        mixer=spec,
        linears=(
            *dense[:n_before],
            *_projections(spec, hidden, in_bias=bias, out_bias=bias),
            *dense[n_before:],
        ),
        norms=(*(norm for norm in full.norms if norm.on == "hidden"), *_mixer_norms(spec)),
        extra_params=full.extra_params + spec.param_count,
    )


def _kinds(fields: ConfigFields, name: str, n_layers: int, known: set[str]) -> list[str]:
    """Kinds of all layers as ``name`` lists them; mixers alone where it is absent."""
    kinds = (
        [_LEGACY.get(kind, kind) for kind in fields.texts(name)] if fields.has(name) else [_MIXED] * n_layers
    )
    check_kinds(fields, kinds, n_layers, sorted(known), name)
    return kinds


def _of_kinds(fields: ConfigFields, kinds: list[str], blocks: dict[str, BlockSpec]) -> ModelSpec:
    layers = [blocks[kind] for kind in kinds]
    return decoder(fields, layers)


def read_granite4(fields: ConfigFields) -> ModelSpec:
    """``granitemoehybrid``: layers of Mamba 2 or attention; a shared MLP,
    and beside it experts where there are any.
    """
    hidden, n_layers = fields.integer("hidden_size"), fields.layers("num_hidden_layers")
    bias = fields.flag("attention_bias", False)
    attention = replace(
        attention_of(fields),
        position="rope" if fields.text("position_embedding_type", "") == "rope" else "none",
    )
    full = _granite_block(fields, attention, separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias))
    name = "layers_block_type" if fields.has("layers_block_type") else "layer_types"
    kinds = _kinds(fields, name, n_layers, {_FULL, _MIXED})
    blocks = {_FULL: full}
    if _MIXED in kinds:
        mixer = _mixer(fields, fields.integer("mamba_expand", default=2) * hidden)
        blocks[_MIXED] = mixed_block(full, mixer, hidden, bias=fields.flag("mamba_proj_bias", False))
    return replace(_of_kinds(fields, kinds, blocks), embedding_scale="model", scales_logits=True)


def _granite_block(
    fields: ConfigFields, attention: AttentionSpec, projections: tuple[LinearSpec, ...]
) -> BlockSpec:
    hidden, shared = fields.integer("hidden_size"), fields.integer("shared_intermediate_size", default=1024)
    dense = fused_gated_mlp(hidden, shared, ("input_linear", "output_linear"))
    mlp = MlpSpec(shared, gated=True, activation=fields.text("hidden_act", "silu"))
    n_experts = fields.count("num_local_experts", default=8)
    if n_experts:
        width = fields.integer("intermediate_size", default=11008)
        top_k = fields.integer("num_experts_per_tok", default=2)
        mlp = replace(experts_of(fields, width, n_experts, top_k), shared_width=shared, router="chosen")
        shared_linears = tuple(replace(linear, group="shared_expert") for linear in dense)
        dense = (router(hidden, n_experts, name="router"), *fused_experts(hidden, mlp), *shared_linears)
    # GraniteMoeHybridDecoderLayer makes its attention, or its mixer, last.
    return BlockSpec(attention, mlp, (*dense, *projections), (rms(hidden, copies=2),), scales_branches=True)


def read_bamba(fields: ConfigFields) -> ModelSpec:
    """``bamba``: Llama's block, most layers of Mamba 2; attention turns half of each head."""
    hidden = fields.integer("hidden_size")
    n_layers = fields.layers("num_hidden_layers")
    bias = fields.flag("attention_bias", False)
    attention = attention_of(fields, kv_default=8)
    attention = replace(
        attention, rotary_width=rotary_width(fields, attention.head_dim, 0.5), joined_rotary=True
    )
    full = llama_block(
        fields, attention, qkv_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias", False)
    )
    mixer = _mixer(fields, fields.integer("mamba_expand", default=2) * hidden)
    attends = set(fields.integers("attn_layer_indices"))
    kinds = [_FULL if index in attends else _MIXED for index in range(n_layers)]
    blocks = {
        _FULL: full,
        _MIXED: mixed_block(full, mixer, hidden, bias=fields.flag("mamba_proj_bias", False)),
    }
    return _of_kinds(fields, kinds, blocks)


def read_falcon_h1(fields: ConfigFields) -> ModelSpec:
    """``falcon_h1``: Mamba 2 and attention side by side in every layer,
    and numbers that multiply most of what they make.
    """
    hidden, bias = fields.integer("hidden_size"), fields.flag("attention_bias", False)
    attention = replace(attention_of(fields, kv_default=8), scales_key=True)
    full = llama_block(
        fields, attention, qkv_bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias", False)
    )
    is_null = "mamba_d_ssm" in fields.data and not fields.has("mamba_d_ssm")
    expanded = fields.integer("mamba_expand", default=2) * hidden
    mixer = _mixer(fields, expanded if is_null else fields.integer("mamba_d_ssm", default=1024))
    mixer = replace(mixer, normed=fields.flag("mamba_rms_norm", False), scaled=True)
    projections = _projections(
        mixer,
        hidden,
        in_bias=fields.flag("mamba_proj_bias", False),
        out_bias=fields.flag("projectors_bias", False),
    )
    block = replace(
        full,
        mixer=mixer,
        mlp=replace(full.mlp, scales_gate=True),
        linears=(*projections, *full.linears),
        norms=(*full.norms, *_mixer_norms(mixer)),
        extra_params=mixer.param_count,
    )
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"))
    return replace(spec, embedding_scale="model", scales_logits=True)


_PATTERN = {"M": _MIXED, "*": _FULL, "-": "mlp", "E": "moe"}
"""Letters of ``hybrid_override_pattern`` (configuration_nemotron_h.py _pattern_to_list)."""


def read_nemotron_h(fields: ConfigFields) -> ModelSpec:
    """``nemotron_h``: every layer is one part, Mamba 2, attention without positions,
    a feed-forward of two matrices, or experts of two matrices beside a shared one.
    """
    hidden = fields.integer("hidden_size")
    kinds = _nemotron_kinds(fields)
    attention = replace(
        attention_of(fields, kv_default=8, head_dim_default=128, heads_default=32), position="none"
    )
    norm, width = (rms(hidden),), fields.integer("intermediate_size", default=21504)
    mlp = MlpSpec(width, gated=False, activation=fields.text("mlp_hidden_act", "relu2"))
    matrices = plain_mlp(hidden, width, ("up_proj", "down_proj"), bias=fields.flag("mlp_bias", False))
    full = BlockSpec(attention, _NO_MLP, separate_qkv(attention, hidden), norm)
    blocks = {
        _FULL: full,
        _MIXED: mixed_block(full, _nemotron_mixer(fields), hidden, bias=fields.flag("use_bias", False)),
        "mlp": BlockSpec(NO_ATTENTION, mlp, matrices, norm),
    }
    if "moe" in kinds:
        blocks["moe"] = _nemotron_experts(fields)
    spec = with_scaling(_of_kinds(fields, kinds, blocks), "widened")
    return replace(spec, token_embedding=replace(spec.token_embedding, name="embeddings"), wide_logits=True)


def _nemotron_experts(fields: ConfigFields) -> BlockSpec:
    """Experts without a gate, chosen as DeepSeek V3 does; ``moe_latent_size`` features where it is given."""
    hidden, bias = fields.integer("hidden_size"), fields.flag("mlp_bias", False)
    n_experts = fields.integer("n_routed_experts", "num_local_experts", default=8)
    top_k = fields.integer("num_experts_per_tok", default=2)
    mlp = replace(
        experts_of(fields, fields.integer("moe_intermediate_size", default=7688), n_experts, top_k),
        gated=False,
        activation=fields.text("mlp_hidden_act", "relu2"),
        shared_width=fields.integer("moe_shared_expert_intermediate_size", default=7688),
        router="sigmoid",
    )
    latent = fields.optional_integer("moe_latent_size")
    shared = plain_mlp(hidden, mlp.shared_width, ("up_proj", "down_proj"), bias=bias)
    around = (
        (
            LinearSpec("fc1_latent_proj", "mlp", hidden, latent, "mlp_in", bias),
            LinearSpec("fc2_latent_proj", "mlp", latent, hidden, "mlp_mid", bias),
        )
        if latent
        else ()
    )
    linears = (
        router(hidden, n_experts),
        *around,
        *fused_experts(latent or hidden, mlp, up_name="up_proj"),
        *(replace(each, group="shared_expert") for each in shared),
    )
    return BlockSpec(NO_ATTENTION, mlp, linears, (rms(hidden),))


def _nemotron_mixer(fields: ConfigFields) -> Mamba2Spec:
    spec = Mamba2Spec(
        heads=fields.integer("mamba_num_heads", default=128),
        head_dim=fields.integer("mamba_head_dim", default=64),
        groups=fields.integer("n_groups", "mamba_n_groups", default=8),
        state=fields.integer("ssm_state_size", default=128),
        kernel=fields.integer("conv_kernel", "mamba_d_conv", default=4),
        chunk=fields.integer("chunk_size", "mamba_chunk_size", default=128),
        conv_bias=fields.flag("use_conv_bias", fields.flag("mamba_conv_bias", True)),
    )
    return _checked(fields, spec)


def _nemotron_kinds(fields: ConfigFields) -> list[str]:
    name = "layers_block_type" if fields.has("layers_block_type") else "layer_types"
    kinds = [_LEGACY.get(kind, kind) for kind in fields.texts(name)]
    pattern = fields.text("hybrid_override_pattern", "")
    if not kinds and pattern:
        kinds = [_PATTERN.get(letter, letter) for letter in pattern]
    if not kinds:
        raise fields.fail("neither layers_block_type nor hybrid_override_pattern says what the layers are")
    others = sorted(set(kinds) - {_FULL, _MIXED, "mlp", "moe"})
    if others:
        raise NotModelledError(f"{fields.where}: layers of type '{others[0][:40]}' are not modelled")
    if len(kinds) > MAX_LAYERS:
        raise fields.fail(f"{len(kinds)} layers are more than the limit of {MAX_LAYERS}")
    return kinds


def read_mamba2(fields: ConfigFields) -> ModelSpec:
    """``mamba2``: mixers alone, each behind a norm, which add to a stream in fp32."""
    hidden = fields.integer("hidden_size")
    mixer = Mamba2Spec(
        heads=fields.integer("num_heads", default=128),
        head_dim=fields.integer("head_dim", default=64),
        groups=fields.integer("n_groups", default=8),
        state=fields.integer("state_size", default=128),
        kernel=fields.integer("conv_kernel", default=4),
        chunk=fields.integer("chunk_size", default=256),
        conv_bias=fields.flag("use_conv_bias", True),
    )
    if mixer.width != fields.integer("expand", default=2) * hidden:
        raise fields.fail(f"num_heads times head_dim is {mixer.width}, not expand times hidden_size")
    bias = fields.flag("use_bias", False)
    empty = BlockSpec(NO_ATTENTION, _NO_MLP, (), (rms(hidden),))
    block = mixed_block(empty, _checked(fields, mixer), hidden, bias=bias)
    block = replace(block, wide_stream=fields.flag("residual_in_fp32", True))
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"))
    table = replace(spec.token_embedding, name="embeddings")
    return replace(spec, token_embedding=table, wide_logits=True)


READERS = {
    "mamba2": read_mamba2,
    "granitemoehybrid": read_granite4,
    "bamba": read_bamba,
    "falcon_h1": read_falcon_h1,
    "nemotron_h": read_nemotron_h,
}
