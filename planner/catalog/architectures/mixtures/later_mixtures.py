"""Mixtures of experts of 2025 and later: GLM-4.5, MiniMax M2, ERNIE 4.5, Hunyuan, AFMoE, Solar Open, Hy3,
K-EXAONE.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.later_blocks import in_exaone_windows, turned_in_windows
from planner.catalog.architectures.dense.llama_family import (
    attention_of,
    decoder,
    head_norms,
    wide_head_norms,
)
from planner.catalog.architectures.mixtures.moe_family import SPLIT_NAMES, experts_of, shared_experts
from planner.catalog.architectures.parts import (
    fused_experts,
    gated_mlp,
    reached_by_peft,
    rms,
    rotary_width,
    router,
    separate_qkv,
    with_scaling,
)
from planner.catalog.architectures.windows import (
    alternating_types,
    check_kinds,
    layer_windows,
    window_field,
)
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec


def _dense(
    fields: ConfigFields, attention: AttentionSpec, projections: tuple[LinearSpec, ...], *, bias: bool
) -> BlockSpec:
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    linears = reached_by_peft((*projections, *gated_mlp(hidden, width, bias=bias)), *SPLIT_NAMES)
    mlp = MlpSpec(width, gated=True, activation=fields.text("hidden_act", "silu"))
    return BlockSpec(attention, mlp, linears, (rms(hidden, copies=2),))


def _sparse(
    attention: AttentionSpec, projections: tuple[LinearSpec, ...], mlp: MlpSpec, hidden: int, *, bias: bool
) -> BlockSpec:
    experts = (router(hidden, mlp.n_experts), *fused_experts(hidden, mlp))
    shared = shared_experts(hidden, mlp.shared_width, bias=bias) if mlp.shared_width else ()
    linears = reached_by_peft((*projections, *experts, *shared), *SPLIT_NAMES)
    return BlockSpec(attention, mlp, linears, (rms(hidden, copies=2),))


def read_glm4_moe(fields: ConfigFields) -> ModelSpec:
    """``glm4_moe``: Llama's attention with half of each head turned, first dense layers,
    then DeepSeek V3's experts.

    ``e_score_correction_bias`` of each router is a buffer, not a parameter.
    """
    hidden = fields.integer("hidden_size")
    n_layers = fields.layers("num_hidden_layers")
    bias = fields.flag("attention_bias", False)
    attention = replace(attention_of(fields, kv_default=8), joined_rotary=True, head_norms_last=True)
    attention = replace(attention, rotary_width=rotary_width(fields, attention.head_dim, 0.5))
    projections = separate_qkv(attention, hidden, qkv_bias=bias)
    width = fields.integer("moe_intermediate_size", default=1408)
    n_experts = fields.integer("n_routed_experts", default=128)
    top_k = fields.integer("num_experts_per_tok", default=8)
    shared = width * fields.integer("n_shared_experts", default=1)
    mlp = replace(experts_of(fields, width, n_experts, top_k), shared_width=shared, router="sigmoid")
    n_dense = min(fields.count("first_k_dense_replace", default=1), n_layers)
    blocks = [_dense(fields, attention, projections, bias=False) for _ in range(n_dense)]
    blocks += [_sparse(attention, projections, mlp, hidden, bias=False)] * (n_layers - n_dense)
    if fields.flag("use_qk_norm", False):
        blocks = [replace(block, norms=block.norms + head_norms(attention)) for block in blocks]
    spec = decoder(fields, blocks)
    return replace(
        spec, omits="the multi-token-prediction layers, which Transformers does not build by default"
    )


def read_glm4v_moe_text(fields: ConfigFields) -> ModelSpec:
    """``glm4v_moe_text``: the decoder of GLM-4.5V, GLM-4.5's without norms of heads.

    It is biased, and whole heads are turned, where no field says otherwise.
    """
    data = {"attention_bias": True, "partial_rotary_factor": 1.0, **fields.data, "use_qk_norm": False}
    return replace(read_glm4_moe(ConfigFields(data, fields.where)), omits="")


def read_minimax_m2(fields: ConfigFields) -> ModelSpec:
    """``minimax_m2``: query and key normed over all heads, a part of each head turned,
    experts chosen by a sigmoid in fp32.

    Released files say the turned part as ``rotary_dim``.
    """
    hidden, n_layers = fields.integer("hidden_size"), fields.layers("num_hidden_layers")
    attention = attention_of(fields, kv_default=8, head_dim_default=128)
    share = fields.integer("rotary_dim", default=attention.head_dim) / attention.head_dim
    width = rotary_width(fields, attention.head_dim, min(share, 1.0))
    attention = replace(attention, heads_last=True, joined_rotary=True, rotary_width=width)
    n_experts = fields.integer("num_local_experts", default=256)
    top_k = fields.integer("num_experts_per_tok", default=8)
    mlp = replace(
        experts_of(fields, fields.integer("intermediate_size"), n_experts, top_k), router="sigmoid_fp32"
    )
    block = _sparse(attention, separate_qkv(attention, hidden), mlp, hidden, bias=False)
    linears = reached_by_peft(block.linears, ("w1", "w3"), "w2")
    block = replace(block, linears=linears, norms=block.norms + wide_head_norms(attention))
    spec = decoder(fields, [block] * n_layers)
    return replace(spec, omits="the multi-token-prediction modules, which Transformers does not build")


def read_ernie_moe(fields: ConfigFields) -> ModelSpec:
    """``ernie4_5_moe``: ERNIE 4.5's attention, experts beside shared ones that run first.

    Each router has a frozen parameter of one number for each expert, counted among those beside the matrices.
    """
    hidden = fields.integer("hidden_size")
    n_layers = fields.layers("num_hidden_layers")
    bias = fields.flag("use_bias", False)
    attention = attention_of(fields, kv_default=4)
    attention = replace(attention, rotary_form="repeated_pairs", rotary_result="floated")
    projections = separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias)
    width = fields.integer("moe_intermediate_size", default=1536)
    n_experts, top_k = fields.integer("moe_num_experts", default=64), fields.integer("moe_k", default=6)
    shared = width * fields.count("moe_num_shared_experts", default=2)
    mlp = replace(
        experts_of(fields, width, n_experts, top_k),
        shared_width=shared,
        router="fp32_cast",
        shared_first=True,
    )
    sparse = replace(_sparse(attention, projections, mlp, hidden, bias=bias), extra_params=n_experts)
    dense = _dense(fields, attention, projections, bias=bias)
    kinds = _ernie_layers(fields, n_layers)
    spec = decoder(fields, [sparse if kind else dense for kind in kinds], tied_default=True)
    return replace(spec, head=replace(spec.head, bias=bias))


def _ernie_layers(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Which layers have experts: every ``moe_layer_interval``-th one from the first to the last index that
    are given.
    """
    first = fields.count("moe_layer_start_index", default=1)
    step = fields.integer("moe_layer_interval", default=1)
    last = (
        n_layers - 1
        if fields.data.get("moe_layer_end_index", -1) == -1
        else fields.count("moe_layer_end_index")
    )
    return [(index + 1) % step == 0 and first <= index <= last for index in range(n_layers)]


def read_hunyuan_moe(fields: ConfigFields) -> ModelSpec:
    """``hunyuan_v1_moe``: Hunyuan's attention;
    a shared expert of one expert's width runs before the routed ones.

    Released files say the number of chosen experts for each layer; layers that differ in it are refused.
    """
    hidden, bias = fields.integer("hidden_size"), fields.flag("attention_bias", False)
    attention = replace(attention_of(fields), head_norms_turned=True)
    width = fields.integer("intermediate_size")
    n_experts, top_k = _same_in_all_layers(fields, "num_experts"), _same_in_all_layers(fields, "moe_topk")
    mlp = replace(
        experts_of(fields, width, n_experts, top_k), shared_width=width, shared_first=True, router="module"
    )
    projections = separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias)
    gate = LinearSpec("wg", "router", hidden, n_experts, "mlp_in")
    linears = (*projections, gate, *fused_experts(hidden, mlp), *shared_experts(hidden, width))
    norms = (rms(hidden, copies=2), *head_norms(attention))
    block = BlockSpec(attention, mlp, reached_by_peft(linears, *SPLIT_NAMES), norms)
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


def read_afmoe(fields: ConfigFields) -> ModelSpec:
    """``afmoe`` (Trinity): a norm before and behind each branch, positions in windows only, what attention
    returns weighed by a matrix of its own; dense layers, then experts beside a shared one.

    ``expert_bias`` of each router is a frozen parameter, counted among those beside the matrices.
    """
    hidden, n_layers = fields.integer("hidden_size"), fields.layers("num_hidden_layers")
    bias, window = fields.flag("attention_bias", False), window_field(fields, 1024)
    attention = replace(
        attention_of(fields, head_dim_default=128), head_norms_last=True, output_gate="matrix"
    )
    gate = LinearSpec("gate_proj", "attention", hidden, attention.out_width, "attn_in")
    projections = (*separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias), gate)
    n_experts = fields.integer("num_experts", default=64)
    top_k = fields.integer("num_experts_per_tok", default=6)
    width = fields.integer("moe_intermediate_size", default=1408)
    shared = width * fields.integer("num_shared_experts", default=2)
    mlp = experts_of(fields, width, n_experts, top_k)
    mlp = replace(mlp, shared_width=shared, router="sigmoid_module")
    chooser = LinearSpec("gate", "router", hidden, n_experts, "mlp_in")
    linears = (*projections, chooser, *fused_experts(hidden, mlp), *shared_experts(hidden, shared))
    norms = (rms(hidden, copies=4), *head_norms(attention))
    sparse = BlockSpec(attention, mlp, reached_by_peft(linears, *SPLIT_NAMES), norms, extra_params=n_experts)
    dense = replace(_dense(fields, attention, projections, bias=False), norms=norms)
    n_dense = min(fields.count("num_dense_layers", default=1), n_layers)
    types = alternating_types(n_layers, fields.integer("global_attn_every_n_layers", default=4))
    windows = layer_windows(fields, n_layers, window, types)
    blocks = turned_in_windows(dense, windows[:n_dense]) + turned_in_windows(sparse, windows[n_dense:])
    spec = with_scaling(decoder(fields, blocks), "wide")
    return replace(spec, embedding_scale="stream" if fields.flag("mup_enabled", False) else "none")


def read_solar_open(fields: ConfigFields) -> ModelSpec:
    """``solar_open``: GLM-4.5's experts in every layer, and whole heads turned as Llama does."""
    given = {"head_dim": 128, "moe_intermediate_size": 1280, "partial_rotary_factor": 1.0, **fields.data}
    data = {**given, "first_k_dense_replace": 0, "use_qk_norm": False}
    spec = read_glm4_moe(ConfigFields(data, fields.where))
    plain = spec.groups[0].block.attention
    plain = replace(plain, joined_rotary=False, head_norms_last=False, rotary_width=0)
    return replace(spec.with_blocks(lambda block: replace(block, attention=plain)), omits="")


def read_hy_v3(fields: ConfigFields) -> ModelSpec:
    """``hy_v3``: Apertus's attention; one dense layer, then experts chosen by a sigmoid in fp32 beside a
    shared one.  PEFT 0.21 has no table of these experts.

    ``e_score_correction_bias`` of each layer is a buffer, not a parameter.
    """
    attention = replace(attention_of(fields, kv_default=8, head_dim_default=128), head_norms_last=True)
    bias = fields.flag("attention_bias", False)
    projections = separate_qkv(attention, fields.integer("hidden_size"), qkv_bias=bias, out_bias=bias)
    blocks = _behind_dense(fields, attention, projections, _ExpertDefaults(192, 8, 1536))
    wide = fields.flag("enable_moe_fp32_combine", True)
    blocks = [
        replace(block, mlp=replace(block.mlp, router="sigmoid_divided", wide_sum=wide)) for block in blocks
    ]
    spec = decoder(fields, blocks).with_linears(
        lambda linears: (replace(each, legacy_names=(), adaptable=True) for each in linears)
    )
    return replace(spec, omits="the multi-token-prediction layer, which Transformers does not build")


def read_exaone_moe(fields: ConfigFields) -> ModelSpec:
    """``exaone_moe`` (K-EXAONE): EXAONE 4's attention behind a norm, and DeepSeek V3's experts.

    ``e_score_correction_bias`` of each router is a buffer, not a parameter.
    """
    attention = replace(attention_of(fields, kv_default=32), head_norms_last=True)
    projections = separate_qkv(attention, fields.integer("hidden_size"))
    blocks = _behind_dense(fields, attention, projections, _ExpertDefaults(64, 8, 1024))
    spec = decoder(fields, in_exaone_windows(fields, blocks))
    return replace(spec, omits="the multi-token-prediction layer, which Transformers does not build")


@dataclass(frozen=True, slots=True)
class _ExpertDefaults:
    """What an absent field means."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int


def _behind_dense(
    fields: ConfigFields,
    attention: AttentionSpec,
    projections: tuple[LinearSpec, ...],
    defaults: _ExpertDefaults,
) -> list[BlockSpec]:
    """All layers: those that ``mlp_layer_types`` calls dense, else the first ones, then experts beside a
    shared one; norms over each head.
    """
    hidden, n_layers = fields.integer("hidden_size"), fields.layers("num_hidden_layers")
    width = fields.integer("moe_intermediate_size", default=defaults.moe_intermediate_size)
    n_experts = fields.integer("num_experts", "num_local_experts", default=defaults.num_experts)
    top_k = fields.integer("num_experts_per_tok", default=defaults.num_experts_per_tok)
    shared = width * fields.integer("num_shared_experts", default=1)
    mlp = replace(experts_of(fields, width, n_experts, top_k), shared_width=shared, router="sigmoid")
    n_dense = fields.count("first_k_dense_replace", default=1)
    kinds = fields.texts("mlp_layer_types") or tuple(
        "dense" if index < n_dense else "sparse" for index in range(n_layers)
    )
    check_kinds(fields, kinds, n_layers, ("dense", "sparse"), "mlp_layer_types")
    made = {
        "dense": _dense(fields, attention, projections, bias=False),
        "sparse": _sparse(attention, projections, mlp, hidden, bias=False),
    }
    normed = {kind: replace(block, norms=block.norms + head_norms(attention)) for kind, block in made.items()}
    return [normed[kind] for kind in kinds]


def _same_in_all_layers(fields: ConfigFields, name: str) -> int:
    """A number, or a list of the same number for each layer; 1 where the file has none."""
    if not isinstance(fields.data.get(name), list):
        return fields.integer(name, default=1)
    each = set(fields.integers(name))
    if len(each) != 1:
        raise fields.fail(f"{name} differs from layer to layer, which is not modelled")
    return each.pop()


READERS = {
    "glm4_moe": read_glm4_moe,
    "glm4v_moe_text": read_glm4v_moe_text,
    "minimax_m2": read_minimax_m2,
    "ernie4_5_moe": read_ernie_moe,
    "hunyuan_v1_moe": read_hunyuan_moe,
    "afmoe": read_afmoe,
    "solar_open": read_solar_open,
    "hy_v3": read_hy_v3,
    "exaone_moe": read_exaone_moe,
}
