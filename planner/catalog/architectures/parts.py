"""Building blocks that several architectures share: projections, MLPs, norms, grouping of equal layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from planner.catalog.architectures.config_fields import ConfigFields
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import (
    BlockGroup,
    BlockSpec,
    EmbeddingSpec,
    LinearKind,
    LinearSpec,
    MlpSpec,
    ModelSpec,
    NormScaling,
    NormSpec,
)


def group_layers(blocks: Iterable[BlockSpec]) -> tuple[BlockGroup, ...]:
    """Equal layers in a row counted together: the order decides which free blocks the next pass finds,
    and where kinds differ in what backward needs, the fullest moment.
    """
    return tuple(BlockGroup(sum(1 for _ in row), block) for block, row in groupby(blocks))


def separate_qkv(
    attention: AttentionSpec, hidden: int, *, qkv_bias: bool = False, out_bias: bool = False
) -> tuple[LinearSpec, ...]:
    """``q_proj``, ``k_proj``, ``v_proj``, ``o_proj`` as Llama names them."""
    return (
        LinearSpec("q_proj", "attention", hidden, attention.q_width, "attn_in", qkv_bias),
        LinearSpec("k_proj", "attention", hidden, attention.k_width, "attn_in", qkv_bias),
        LinearSpec("v_proj", "attention", hidden, attention.v_width, "attn_in", qkv_bias),
        LinearSpec("o_proj", "attention", attention.out_width, hidden, "attn_out", out_bias),
    )


def rotary_width(
    fields: ConfigFields, head_dim: int, default: float, name: str = "partial_rotary_factor"
) -> int:
    """Features of each head that rotary positions turn: a share of them,
    of which Transformers 5 keeps the older ``name`` too.
    """
    rope = fields.optional_section("rope_parameters").data
    share = rope.get("partial_rotary_factor", fields.data.get(name, default))
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise fields.fail(f"field '{name}' must be a number above 0 and at most 1")
    return int(head_dim * share)


def fused_qkv(
    attention: AttentionSpec,
    hidden: int,
    names: tuple[str, str],
    *,
    biases: tuple[bool, bool],
    kind: LinearKind = "linear",
) -> tuple[LinearSpec, ...]:
    """One matrix for query, key and value, and the output projection;
    ``names`` and ``biases`` are of those two.
    """
    qkv_width = attention.q_width + attention.k_width + attention.v_width
    return (
        LinearSpec(names[0], "attention", hidden, qkv_width, "attn_in", biases[0], kind),
        LinearSpec(names[1], "attention", attention.out_width, hidden, "attn_out", biases[1], kind),
    )


def gated_mlp(
    hidden: int,
    width: int,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    *,
    bias: bool = False,
) -> tuple[LinearSpec, ...]:
    """Gate, up and down projections."""
    return (
        LinearSpec(names[0], "mlp", hidden, width, "mlp_in", bias),
        LinearSpec(names[1], "mlp", hidden, width, "mlp_in", bias),
        LinearSpec(names[2], "mlp", width, hidden, "mlp_mid", bias),
    )


def fused_gated_mlp(
    hidden: int, width: int, names: tuple[str, str] = ("gate_up_proj", "down_proj"), *, bias: bool = False
) -> tuple[LinearSpec, ...]:
    """Gate and up in one matrix, and the down projection."""
    return (
        LinearSpec(names[0], "mlp", hidden, 2 * width, "mlp_in", bias),
        LinearSpec(names[1], "mlp", width, hidden, "mlp_mid", bias),
    )


def plain_mlp(
    hidden: int, width: int, names: tuple[str, str], *, bias: bool, kind: LinearKind = "linear"
) -> tuple[LinearSpec, ...]:
    """Two matrices around an activation."""
    return (
        LinearSpec(names[0], "mlp", hidden, width, "mlp_in", bias, kind),
        LinearSpec(names[1], "mlp", width, hidden, "mlp_mid", bias, kind),
    )


def fused_experts(
    hidden: int, mlp: MlpSpec, *, bias: bool = False, up_name: str = "gate_up_proj"
) -> tuple[LinearSpec, ...]:
    """Expert tensors as Transformers 5 stores them: two three-dimensional parameters over all experts,
    the first with gate and up in one where there is a gate.
    """
    counts = (mlp.n_experts, mlp.top_k)
    inner = 2 * mlp.width if mlp.gated else mlp.width
    return (
        LinearSpec(up_name, "expert", hidden, inner, "mlp_in", bias, "parameter", *counts),
        LinearSpec("down_proj", "expert", mlp.width, hidden, "mlp_mid", bias, "parameter", *counts),
    )


def reached_by_peft(
    linears: tuple[LinearSpec, ...], gate_up: tuple[str, str], down: str
) -> tuple[LinearSpec, ...]:
    """``linears`` of a layer as PEFT finds them where its table says which matrices the fused experts
    replaced.

    ``gate_up`` and ``down`` are the names of those matrices.  They then mean the experts alone: dense
    matrices of these names (shared experts, dense layers between) get no adapter.  Source: peft 0.21
    ``utils/transformers_weight_conversion.py``.
    """
    legacy = {"gate_up_proj": gate_up, "down_proj": (down,), "gate": ("gate",)}
    taken = {*gate_up, down}
    return tuple(
        replace(linear, legacy_names=legacy.get(linear.name, ()))
        if linear.kind == "parameter"
        else replace(linear, adaptable=linear.name not in taken)
        for linear in linears
    )


def unreached_by_peft(model: ModelSpec) -> ModelSpec:
    """``model`` whose fused expert tensors no name of a matrix reaches, where PEFT's table lacks its type.

    Source: peft 0.21 ``utils/transformers_weight_conversion.py`` (``_convert_peft_config_moe``: the table of
    transformers 5.23 does not have ``qwen3_vl_moe``, and has ``internvl`` among models without experts).
    """
    return model.with_linears(
        lambda linears: (
            replace(each, legacy_names=()) if each.kind == "parameter" else each for each in linears
        )
    )


def router(hidden: int, n_experts: int, *, bias: bool = False, name: str = "gate") -> LinearSpec:
    """The routing matrix; a bare parameter in Transformers 5, so k-bit quantisers leave it alone."""
    return LinearSpec(name, "router", hidden, n_experts, "mlp_in", bias, "parameter")


def token_embedding(fields: ConfigFields, hidden: int, name: str = "embed_tokens") -> EmbeddingSpec:
    """The token table."""
    return EmbeddingSpec(name, fields.integer("vocab_size"), hidden)


def lm_head(hidden: int, vocab: int, *, bias: bool = False, name: str = "lm_head") -> LinearSpec:
    """The output projection to the vocabulary."""
    return LinearSpec(name, "head", hidden, vocab, "head_in", bias)


def rms(width: int, copies: int = 1) -> NormSpec:
    """Root-mean-square norms with a weight over the residual stream."""
    return NormSpec("rms", width, copies)


def with_scaling(spec: ModelSpec, scaling: NormScaling) -> ModelSpec:
    """``spec`` with every norm applying its weight as ``scaling`` says."""

    def scaled(norms: tuple[NormSpec, ...]) -> tuple[NormSpec, ...]:
        return tuple(replace(norm, scaling=scaling) for norm in norms)

    spec = replace(spec, final_norms=scaled(spec.final_norms))
    return spec.with_blocks(lambda block: replace(block, norms=scaled(block.norms)))


def layer_norm(width: int, copies: int = 1, *, bias: bool = True, weight: bool = True) -> NormSpec:
    """Layer norms over the residual stream."""
    return NormSpec("layer", width, copies, bias=bias, weight=weight)
