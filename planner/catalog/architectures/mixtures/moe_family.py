"""Mixtures of experts around Llama's attention: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, FlexOlmo,
Granite-MoE; Phi-3.5-MoE.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``): the experts of a
layer are two three-dimensional parameters, the router a bare parameter.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import (
    attention_of,
    decoder,
    head_norms,
    llama_block,
    wide_head_norms,
    with_windows,
)
from planner.catalog.architectures.parts import (
    fused_experts,
    gated_mlp,
    layer_norm,
    reached_by_peft,
    rms,
    router,
    separate_qkv,
    with_scaling,
)
from planner.catalog.architectures.windows import FULL, SLIDING, layer_windows, window_field
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec

SPLIT_NAMES = (("gate_proj", "up_proj"), "down_proj")
"""Names of the separate matrices that these architectures had before Transformers 5: gate and up, down."""


def experts_of(fields: ConfigFields, width: int, n_experts: int, top_k: int) -> MlpSpec:
    """A mixture of gated experts; each token goes to ``top_k`` of them."""
    if top_k > n_experts:
        raise fields.fail(f"num_experts_per_tok {top_k} is above the number of experts, {n_experts}")
    return MlpSpec(
        width, gated=True, activation=fields.text("hidden_act", "silu"), n_experts=n_experts, top_k=top_k
    )


def _moe_block(
    fields: ConfigFields,
    attention: AttentionSpec,
    mlp: MlpSpec,
    *,
    qkv_bias: bool,
    out_bias: bool,
    router_name: str = "gate",
) -> BlockSpec:
    hidden = fields.integer("hidden_size")
    return BlockSpec(
        attention=attention,
        mlp=mlp,
        linears=(
            *separate_qkv(attention, hidden, qkv_bias=qkv_bias, out_bias=out_bias),
            router(hidden, mlp.n_experts, name=router_name),
            *fused_experts(hidden, mlp),
        ),
        norms=(rms(hidden, copies=2),),
    )


def read_mixtral(fields: ConfigFields) -> ModelSpec:
    """``mixtral``: every layer routes each token to 2 of 8 experts unless told otherwise."""
    attention = attention_of(fields, window_tokens=fields.optional_integer("sliding_window"), kv_default=8)
    n_experts = fields.integer("num_local_experts", "num_experts", default=8)
    mlp = experts_of(
        fields,
        fields.integer("intermediate_size"),
        n_experts,
        fields.integer("num_experts_per_tok", default=2),
    )
    block = _moe_block(fields, attention, mlp, qkv_bias=False, out_bias=False)
    linears = reached_by_peft(block.linears, ("w1", "w3"), "w2")
    block = replace(block, mlp=replace(mlp, router="softmax_fp32"), linears=linears)
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


def read_olmoe(fields: ConfigFields) -> ModelSpec:
    """``olmoe``: query and key normalised over all heads at once;
    ``intermediate_size`` is that of one expert.
    """
    attention, bias = replace(attention_of(fields), heads_last=True), fields.flag("attention_bias", False)
    n_experts = fields.integer("num_experts", default=64)
    top_k = fields.integer("num_experts_per_tok", default=8)
    mlp = experts_of(fields, fields.integer("intermediate_size"), n_experts, top_k)
    block = _moe_block(fields, attention, mlp, qkv_bias=bias, out_bias=bias)
    linears = reached_by_peft(block.linears, *SPLIT_NAMES)
    block = replace(block, linears=linears, norms=block.norms + wide_head_norms(attention))
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


def read_flex_olmo(fields: ConfigFields) -> ModelSpec:
    """``flex_olmo``: OLMoE's layers with OLMo 2's attention, norms behind both branches."""
    given = {"num_experts": 7, "num_experts_per_tok": 5, **fields.data}
    spec = read_olmoe(ConfigFields(given, fields.where))

    def normed_last(block: BlockSpec) -> BlockSpec:
        attention = replace(block.attention, rotary_result="input")
        return replace(block, attention=attention, reads_stream=True)

    return with_scaling(spec.with_blocks(normed_last), "wide")


def read_granitemoe(fields: ConfigFields) -> ModelSpec:
    """``granitemoe``: as Mixtral, the router is called ``router``; multipliers change no shape."""
    attention, bias = attention_of(fields), fields.flag("attention_bias", False)
    n_experts = fields.integer("num_local_experts", default=8)
    top_k = fields.integer("num_experts_per_tok", default=2)
    mlp = experts_of(fields, fields.integer("intermediate_size"), n_experts, top_k)
    block = _moe_block(
        fields, attention, replace(mlp, router="chosen"), qkv_bias=bias, out_bias=bias, router_name="router"
    )
    block = replace(block, scales_branches=True)
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"))
    return replace(spec, embedding_scale="model", scales_logits=True)


def read_qwen3_moe(fields: ConfigFields) -> ModelSpec:
    """``qwen3_moe``: per-head query and key norms, 8 of 128 experts; a sliding window, if used,
    is on all layers.
    """
    n_layers, bias = fields.layers("num_hidden_layers"), fields.flag("attention_bias", False)
    window = window_field(fields, 4096) if fields.flag("use_sliding_window", False) else None
    attention = attention_of(fields, window_tokens=window, kv_default=4)
    n_experts = fields.integer("num_experts", default=128)
    top_k = fields.integer("num_experts_per_tok", default=8)
    mlp = experts_of(fields, fields.integer("moe_intermediate_size", default=768), n_experts, top_k)
    sparse = _moe_block(fields, attention, mlp, qkv_bias=bias, out_bias=bias)
    sparse = replace(
        sparse,
        linears=reached_by_peft(sparse.linears, *SPLIT_NAMES),
        norms=sparse.norms + head_norms(attention),
    )
    if all(sparse_layers(fields, n_layers)):
        return decoder(fields, [sparse] * n_layers)
    dense = llama_block(fields, attention, qkv_bias=bias, out_bias=bias)
    dense = replace(dense, linears=reached_by_peft(dense.linears, *SPLIT_NAMES), norms=sparse.norms)
    return decoder(fields, [sparse if is_sparse else dense for is_sparse in sparse_layers(fields, n_layers)])


def read_qwen2_moe(fields: ConfigFields) -> ModelSpec:
    """``qwen2_moe`` (Qwen1.5-MoE, Qwen2-57B-A14B):
    experts beside an always-active one behind its own sigmoid gate.

    PEFT 0.21 has a table for the models converted like this one, but not under this name:
    its experts get no adapters.
    """
    n_layers = fields.layers("num_hidden_layers")
    hidden = fields.integer("hidden_size")
    bias = fields.flag("qkv_bias", True)
    attention = attention_of(fields, kv_default=16)
    n_experts = fields.integer("num_experts", default=60)
    top_k = fields.integer("num_experts_per_tok", default=4)
    shared = fields.integer("shared_expert_intermediate_size", default=5632)
    mlp = experts_of(fields, fields.integer("moe_intermediate_size", default=1408), n_experts, top_k)
    sparse = _moe_block(fields, attention, replace(mlp, shared_width=shared), qkv_bias=bias, out_bias=False)
    gate = LinearSpec("shared_expert_gate", "router", hidden, 1, "mlp_in")
    sparse = replace(sparse, linears=(*sparse.linears, *shared_experts(hidden, shared), gate))
    layers = sparse_layers(fields, n_layers)
    dense = sparse if all(layers) else llama_block(fields, attention, qkv_bias=bias)
    pairs = zip(layers, _qwen2_moe_windows(fields, n_layers), strict=True)
    spec = decoder(
        fields, [with_windows(sparse if is_sparse else dense, [tokens])[0] for is_sparse, tokens in pairs]
    )
    return replace(spec, makes_window_mask=True)


def read_phimoe(fields: ConfigFields) -> ModelSpec:
    """``phimoe`` (Phi-3.5-MoE): Mixtral's block between layer norms, experts drawn by chance.

    No name of a matrix reaches its experts: PEFT 0.21 has no table for this type.
    """
    hidden, bias = fields.integer("hidden_size"), fields.flag("attention_bias", False)
    attention = attention_of(fields, window_tokens=fields.optional_integer("sliding_window"), kv_default=8)
    top_k = fields.integer("num_experts_per_tok", default=2)
    if top_k != 2:
        raise fields.fail(f"num_experts_per_tok is {top_k}, and the code draws two")
    width = fields.integer("intermediate_size", default=6400)
    mlp = experts_of(fields, width, fields.integer("num_local_experts", default=16), top_k)
    noisy = fields.is_positive("input_jitter_noise", 0.0)
    mlp = replace(mlp, router="sampled", jitters=noisy)
    linears = (
        *separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias),
        LinearSpec("router", "router", hidden, mlp.n_experts, "mlp_in", kind="subclass"),
        *fused_experts(hidden, mlp),
    )
    block = BlockSpec(attention, mlp, linears, (layer_norm(hidden, copies=2),))
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"))
    head = replace(spec.head, bias=fields.flag("lm_head_bias", False))
    return replace(spec, head=head, final_norms=(layer_norm(hidden),))


def shared_experts(hidden: int, width: int, *, bias: bool = False) -> tuple[LinearSpec, ...]:
    """The gated MLP that every token passes beside its experts."""
    return tuple(replace(linear, group="shared_expert") for linear in gated_mlp(hidden, width, bias=bias))


def sparse_layers(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Which layers route: every ``decoder_sparse_step``-th that ``mlp_only_layers`` does not name."""
    step, dense = fields.integer("decoder_sparse_step", default=1), set(fields.integers("mlp_only_layers"))
    return [index not in dense and (index + 1) % step == 0 for index in range(n_layers)]


def _qwen2_moe_windows(fields: ConfigFields, n_layers: int) -> list[int | None]:
    """With ``use_sliding_window`` every other layer below ``max_window_layers`` (28 when absent) is local."""
    if not fields.flag("use_sliding_window", False):
        return layer_windows(fields, n_layers, None, [FULL] * n_layers)
    last = fields.count("max_window_layers", default=28)
    default_types = [SLIDING if (index + 1) % 2 and index < last else FULL for index in range(n_layers)]
    return layer_windows(fields, n_layers, window_field(fields, 4096), default_types)


READERS = {
    "mixtral": read_mixtral,
    "olmoe": read_olmoe,
    "granitemoe": read_granitemoe,
    "qwen2_moe": read_qwen2_moe,
    "qwen3_moe": read_qwen3_moe,
    "phimoe": read_phimoe,
    "flex_olmo": read_flex_olmo,
}
