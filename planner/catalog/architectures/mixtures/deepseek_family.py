"""DeepSeek-V2 and V3, GLM-4.7-Flash, Mistral 4, MiniCPM3: multi-head latent attention, a few dense layers,
then experts beside shared ones; dots.llm1: the same experts behind Qwen3's attention.

Module names, shapes and defaults are those of Transformers 5.23
(``models/{deepseek_v2,deepseek_v3,glm4_moe_lite,mistral4,dots1}``).
Attention without a cache expands the latents to full keys and values for every head, so ``n_kv_heads`` equals
``n_heads`` here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import (
    attention_of,
    decoder,
    head_norms,
    with_windows,
)
from planner.catalog.architectures.mixtures.moe_family import experts_of, shared_experts
from planner.catalog.architectures.parts import (
    fused_experts,
    gated_mlp,
    reached_by_peft,
    rms,
    router,
    separate_qkv,
)
from planner.catalog.architectures.windows import qwen_windows
from planner.domain.attention_shape import AttentionSpec, RotaryForm
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec, NormSpec, RouterKind
from planner.errors import NotModelledError


@dataclass(frozen=True, slots=True)
class _ClassDefaults:
    """Where the classes differ: what an absent field means (``None``: it must be present), how the router
    works, and whether PEFT's table has the experts.
    """

    n_routed_experts: int
    n_shared_experts: int
    moe_intermediate_size: int
    first_k_dense_replace: int
    num_experts_per_tok: int | None
    router: RouterKind
    in_table: bool = True


_V2 = _ClassDefaults(64, 2, 1407, 0, None, "fp32")
_V3 = _ClassDefaults(256, 1, 2048, 3, 8, "sigmoid")
_MINICPM3 = {
    "vocab_size": 73_448,
    "hidden_size": 2560,
    "intermediate_size": 6400,
    "num_hidden_layers": 62,
    "num_attention_heads": 40,
    "q_lora_rank": 768,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "max_position_embeddings": 32_768,
}
_GLM = _ClassDefaults(64, 1, 1536, 1, 4, "sigmoid")
_DOTS1 = _ClassDefaults(128, 2, 1408, 0, None, "sigmoid")
_YOUTU = replace(_V3, in_table=False)
_MISTRAL4 = _ClassDefaults(128, 1, 2048, 0, 4, "softmax_fp32", in_table=False)


@dataclass(frozen=True, slots=True)
class _Latents:
    """Ranks and head sizes of multi-head latent attention;
    ``q_rank`` is ``None`` where queries are not compressed.
    """

    q_rank: int | None
    kv_rank: int
    rope_dim: int
    attention: AttentionSpec
    nope_dim: int


def _latents(fields: ConfigFields) -> _Latents:
    heads = fields.integer("num_attention_heads")
    rope_dim = fields.integer("qk_rope_head_dim", default=64)
    nope_dim = fields.integer("qk_nope_head_dim", default=128)
    value_dim = fields.integer("v_head_dim", default=128)
    # An absent rank means 1536, an explicit null that queries are not compressed (DeepSeek-V2-Lite).
    q_rank = fields.optional_integer("q_lora_rank") if "q_lora_rank" in fields.data else 1536
    attention = AttentionSpec(heads, heads, nope_dim + rope_dim, value_dim, joined_rotary=True)
    # V2 turns complex numbers; V3 pairs, unless told to swap halves.
    form: RotaryForm = "crossed_views" if fields.flag("rope_interleave", True) else "halves"
    if fields.text("model_type", "") == "deepseek_v2":
        form = "complex"
    attention = replace(attention, rotary_width=rope_dim, rotary_form=form, rotary_join="forward")
    return _Latents(q_rank, fields.integer("kv_lora_rank", default=512), rope_dim, attention, nope_dim)


def _attention_linears(hidden: int, latents: _Latents, *, bias: bool) -> tuple[LinearSpec, ...]:
    attention = latents.attention
    if latents.q_rank is None:
        queries: tuple[LinearSpec, ...] = (
            LinearSpec("q_proj", "attention", hidden, attention.q_width, "attn_in"),
        )
    else:
        queries = (
            LinearSpec("q_a_proj", "attention", hidden, latents.q_rank, "attn_in", bias),
            LinearSpec("q_b_proj", "attention", latents.q_rank, attention.q_width, "attn_latent_q"),
        )
    expanded = attention.n_heads * (latents.nope_dim + attention.value_head_dim)
    return (
        *queries,
        LinearSpec(
            "kv_a_proj_with_mqa", "attention", hidden, latents.kv_rank + latents.rope_dim, "attn_in", bias
        ),
        LinearSpec("kv_b_proj", "attention", latents.kv_rank, expanded, "attn_latent_kv"),
        LinearSpec("o_proj", "attention", attention.out_width, hidden, "attn_out", bias),
    )


def _norms(hidden: int, latents: _Latents) -> tuple[NormSpec, ...]:
    ranks = [rank for rank in (latents.q_rank, latents.kv_rank) if rank is not None]
    return (rms(hidden, copies=2), *(NormSpec("rms", rank, on="latent") for rank in ranks))


def _read(fields: ConfigFields, defaults: _ClassDefaults, *, mlp_bias: bool) -> ModelSpec:
    hidden, n_layers = fields.integer("hidden_size"), fields.layers("num_hidden_layers")
    latents = _latents(fields)
    base = BlockSpec(
        attention=latents.attention,
        mlp=MlpSpec(0, gated=True, activation=fields.text("hidden_act", "silu")),
        linears=_attention_linears(hidden, latents, bias=fields.flag("attention_bias", False)),
        norms=_norms(hidden, latents),
    )
    n_dense = min(fields.count("first_k_dense_replace", default=defaults.first_k_dense_replace), n_layers)
    blocks = [_dense(fields, base, mlp_bias)] * n_dense if n_dense else []
    blocks += [_sparse(fields, base, defaults, mlp_bias)] * (n_layers - n_dense) if n_layers > n_dense else []
    if defaults.in_table:
        blocks = [replace(block, linears=_reached(block.linears)) for block in blocks]
    return decoder(fields, blocks)


def _dense(fields: ConfigFields, base: BlockSpec, bias: bool) -> BlockSpec:
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    return replace(
        base,
        mlp=replace(base.mlp, width=width),
        linears=base.linears + gated_mlp(hidden, width, bias=bias),
    )


def _sparse(fields: ConfigFields, base: BlockSpec, defaults: _ClassDefaults, bias: bool) -> BlockSpec:
    hidden = fields.integer("hidden_size")
    width = fields.integer("moe_intermediate_size", default=defaults.moe_intermediate_size)
    n_experts = fields.integer("n_routed_experts", default=defaults.n_routed_experts)
    mlp = experts_of(
        fields, width, n_experts, fields.integer("num_experts_per_tok", default=defaults.num_experts_per_tok)
    )
    # All shared experts of a layer are one MLP of their joint width.
    shared_width = width * fields.integer("n_shared_experts", default=defaults.n_shared_experts)
    mlp = replace(mlp, shared_width=shared_width, router=defaults.router)
    experts = (
        router(hidden, n_experts),
        *fused_experts(hidden, mlp),
        *shared_experts(hidden, shared_width, bias=bias),
    )
    return replace(base, mlp=mlp, linears=base.linears + experts)


def _reached(linears: tuple[LinearSpec, ...]) -> tuple[LinearSpec, ...]:
    return reached_by_peft(linears, ("gate_proj", "up_proj"), "down_proj")


def read_deepseek_v2(fields: ConfigFields) -> ModelSpec:
    """``deepseek_v2``: DeepSeek-V2, V2-Lite and DeepSeek-Coder-V2."""
    return _read(fields, _V2, mlp_bias=fields.flag("mlp_bias", False))


def read_deepseek_v3(fields: ConfigFields) -> ModelSpec:
    """``deepseek_v3``: DeepSeek-V3 and R1, the main model without its multi-token-prediction modules.

    ``e_score_correction_bias`` of each router is a buffer, not a parameter.
    """
    spec = _read(fields, _V3, mlp_bias=False)
    return replace(
        spec, omits="the multi-token-prediction modules, which Transformers does not build by default"
    )


def read_glm4_moe_lite(fields: ConfigFields) -> ModelSpec:
    """``glm4_moe_lite``: DeepSeek V3's layers, of which ``mlp_layer_types`` says which have experts.

    Raises:
        NotModelledError: layers without experts behind one that has them.
    """
    given, n_dense = fields.texts("mlp_layer_types"), fields.count("first_k_dense_replace", default=1)
    if given:
        n_dense = given.index("sparse") if "sparse" in given else len(given)
        if set(given[n_dense:]) - {"sparse"} or set(given[:n_dense]) - {"dense"}:
            raise NotModelledError(
                f"{fields.where}: mlp_layer_types other than dense layers before sparse ones is not modelled"
            )
    ranks = {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256}
    with_defaults = {**ranks, **fields.data, "first_k_dense_replace": n_dense}
    spec = _read(ConfigFields(with_defaults, fields.where), _GLM, mlp_bias=False)
    return replace(
        spec, omits="the multi-token-prediction layer, which Transformers does not build by default"
    )


def read_mistral4(fields: ConfigFields) -> ModelSpec:
    """``mistral4``: DeepSeek V3's layers, whose query is multiplied by a number for each position."""
    ranks = {"q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "v_head_dim": 128}
    spec = _read(ConfigFields({**ranks, **fields.data}, fields.where), _MISTRAL4, mlp_bias=False)
    return spec.with_blocks(
        lambda block: replace(block, attention=replace(block.attention, scales_turned_query=True))
    )


def read_minicpm3(fields: ConfigFields) -> ModelSpec:
    """``minicpm3``: latents in dense layers, whose branches are multiplied by numbers, as embeddings are.

    Ignored: the quotient of the last norm's output and a number, which the head reads in its place.
    """
    given = {**_MINICPM3, **fields.data, "rope_interleave": False}
    fields = ConfigFields(given, fields.where)
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    if not fields.has("v_head_dim"):
        given["v_head_dim"] = hidden // fields.integer("num_attention_heads")
    latents, bias = _latents(fields), fields.flag("attention_bias", False)
    block = BlockSpec(
        attention=latents.attention,
        mlp=MlpSpec(width, gated=True, activation=fields.text("hidden_act", "silu")),
        linears=_attention_linears(hidden, latents, bias=bias)
        + gated_mlp(hidden, width, bias=fields.flag("mlp_bias", False)),
        norms=_norms(hidden, latents),
        scales_branches=True,
    )
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"), tied_default=True)
    return replace(spec, embedding_scale="table")


def read_youtu(fields: ConfigFields) -> ModelSpec:
    """``youtu``: DeepSeek V3's attention in dense layers alone, tied head."""
    given = {"tie_word_embeddings": True, **fields.data}
    given["first_k_dense_replace"] = fields.layers("num_hidden_layers")
    return _read(ConfigFields(given, fields.where), _YOUTU, mlp_bias=fields.flag("mlp_bias", False))


def read_dots1(fields: ConfigFields) -> ModelSpec:
    """``dots1`` (dots.llm1): Qwen3's attention and windows, DeepSeek V3's layers around it.

    ``e_score_correction_bias`` of each router is a buffer, not a parameter.
    """
    hidden, n_layers = fields.integer("hidden_size"), fields.layers("num_hidden_layers")
    bias, attention = fields.flag("attention_bias", False), attention_of(fields, kv_default=32)
    base = BlockSpec(
        attention=attention,
        mlp=MlpSpec(0, gated=True, activation=fields.text("hidden_act", "silu")),
        linears=separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias),
        norms=(rms(hidden, copies=2), *head_norms(attention)),
    )
    n_dense = min(fields.count("first_k_dense_replace", default=_DOTS1.first_k_dense_replace), n_layers)
    blocks = [_dense(fields, base, False)] * n_dense if n_dense else []
    if n_layers > n_dense:
        for name in ("n_routed_experts", "n_shared_experts", "num_experts_per_tok"):
            fields.integer(name)
        blocks += [_sparse(fields, base, _DOTS1, False)] * (n_layers - n_dense)
    given = {"max_window_layers": 62, **fields.data, "use_sliding_window": True}
    windows = qwen_windows(ConfigFields(given, fields.where), n_layers)
    blocks = [
        with_windows(replace(block, linears=_reached(block.linears)), [tokens])[0]
        for block, tokens in zip(blocks, windows, strict=True)
    ]
    return decoder(fields, blocks)


READERS: dict[str, Callable[[ConfigFields], ModelSpec]] = {
    "deepseek_v2": read_deepseek_v2,
    "deepseek_v3": read_deepseek_v3,
    "glm4_moe_lite": read_glm4_moe_lite,
    "mistral4": read_mistral4,
    "minicpm3": read_minicpm3,
    "dots1": read_dots1,
    "youtu": read_youtu,
}
