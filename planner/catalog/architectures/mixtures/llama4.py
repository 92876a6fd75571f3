"""Llama 4: layers that attend to chunks beside layers without positions,
and experts that all compute all tokens.

Module names, shapes and defaults are those of Transformers 5.23 (``models/llama4``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, llama_block
from planner.catalog.architectures.mixtures.moe_family import experts_of, shared_experts
from planner.catalog.architectures.parts import fused_experts, separate_qkv, with_scaling
from planner.catalog.architectures.vision.llama4_vision import llama4_tower
from planner.catalog.architectures.windows import FULL, check_kinds
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, LinearSpec, ModelSpec, NormSpec

_CHUNKED = "chunked_attention"


def read_llama4_text(fields: ConfigFields) -> ModelSpec:
    """``llama4_text``: every fourth layer has no positions and attends to all;
    1 of 16 experts beside a shared one.
    """
    n_layers = fields.layers("num_hidden_layers")
    turned = _turned_layers(fields, n_layers)
    sparse = _sparse_layers(fields, n_layers)
    kinds = _kinds(fields, n_layers, turned)
    base = attention_of(fields, kv_default=8, head_dim_default=128)
    base = replace(base, eager_scores="compute")
    chunk = fields.optional_integer("attention_chunk_size") if "attention_chunk_size" in fields.data else 8192
    blocks: dict[tuple[bool, bool, str], BlockSpec] = {}
    for each in dict.fromkeys(zip(turned, sparse, kinds, strict=True)):
        window = chunk if each[2] == _CHUNKED else None
        attention = _attention(fields, replace(base, window_tokens=window), turned=each[0])
        blocks[each] = _block(fields, attention, sparse=each[1])
    layers = [blocks[each] for each in zip(turned, sparse, kinds, strict=True)]
    return with_scaling(decoder(fields, layers), "cast_first")


def _attention(fields: ConfigFields, base: AttentionSpec, *, turned: bool) -> AttentionSpec:
    """The whole head is turned by complex numbers; where nothing is, the query is scaled by its position."""
    if turned:
        norms = fields.flag("use_qk_norm", True)
        return replace(base, rotary_form="complex", rotary_result="fp32", head_norms_turned=norms)
    return replace(base, position="none", scales_query_in_fp32=fields.flag("attn_temperature_tuning", True))


def _block(fields: ConfigFields, attention: AttentionSpec, *, sparse: bool) -> BlockSpec:
    hidden, bias = fields.integer("hidden_size"), fields.flag("attention_bias", False)
    dense = {**fields.data, "intermediate_size": fields.integer("intermediate_size_mlp", default=16384)}
    block = llama_block(ConfigFields(dense, fields.where), attention, qkv_bias=bias, out_bias=bias)
    block = replace(block, keeps_attended=True, keeps_normed=("sum", "part"))
    if attention.head_norms_turned:
        block = replace(block, norms=block.norms + _head_norms(attention))
    if not sparse:
        return block
    width = fields.integer("intermediate_size", default=8192)
    n_experts = fields.integer("num_local_experts", default=16)
    top_k = fields.integer("num_experts_per_tok", default=1)
    mlp = replace(experts_of(fields, width, n_experts, top_k), shared_width=width, router="every")
    experts = tuple(replace(each, active_copies=n_experts) for each in fused_experts(hidden, mlp))
    router = LinearSpec("router", "router", hidden, n_experts, "mlp_in", kind="subclass")
    projections = separate_qkv(attention, hidden, qkv_bias=bias, out_bias=bias)
    return replace(block, mlp=mlp, linears=(*projections, router, *experts, *shared_experts(hidden, width)))


def _head_norms(attention: AttentionSpec) -> tuple[NormSpec, ...]:
    """L2 norms, which have no weight."""
    norm = NormSpec("rms", attention.head_dim, weight=False, on="heads")
    return replace(norm, rows_per_token=attention.n_heads), replace(norm, rows_per_token=attention.n_kv_heads)


def _turned_layers(fields: ConfigFields, n_layers: int) -> list[bool]:
    """``no_rope_layers`` has a 1 for each layer that has positions; Transformers takes
    an empty list for none, too.
    """
    given = fields.integers("no_rope_layers")
    if not given:
        interval = fields.integer("no_rope_layer_interval", default=4)
        return [bool((index + 1) % interval) for index in range(n_layers)]
    if len(given) < n_layers:
        raise fields.fail(f"no_rope_layers has {len(given)} numbers, num_hidden_layers is {n_layers}")
    return [bool(each) for each in given[:n_layers]]


def _sparse_layers(fields: ConfigFields, n_layers: int) -> list[bool]:
    """Layers that ``moe_layers`` names, or every ``interleave_moe_layer_step``-th."""
    if fields.has("moe_layers"):
        named = set(fields.integers("moe_layers"))
        return [index in named for index in range(n_layers)]
    step = fields.integer("interleave_moe_layer_step", default=1)
    return [(index + 1) % step == 0 for index in range(n_layers)]


def _kinds(fields: ConfigFields, n_layers: int, turned: list[bool]) -> list[str]:
    """Which layers attend to chunks: a list in the file, or those that have positions."""
    kinds = (
        list(fields.texts("layer_types"))
        if fields.has("layer_types")
        else [_CHUNKED if each else FULL for each in turned]
    )
    check_kinds(fields, kinds, n_layers, (FULL, _CHUNKED))
    return kinds


def read_llama4(fields: ConfigFields) -> ModelSpec:
    """``llama4``: the multimodal checkpoint; without ``vision_config`` its decoder."""
    text = dict(fields.section("text_config").data)
    text.setdefault("model_type", "llama4_text")
    if fields.has("tie_word_embeddings"):
        text["tie_word_embeddings"] = fields.flag("tie_word_embeddings", False)
    spec = read_llama4_text(ConfigFields(text, f"{fields.where}: text_config"))
    spec = replace(spec, text_class="Llama4ForCausalLM")
    if not fields.has("vision_config"):
        return spec.text_part()
    tower = llama4_tower(fields.section("vision_config"), spec.hidden_size)
    return replace(spec, architecture="llama4", vision=tower)


READERS = {"llama4_text": read_llama4_text, "llama4": read_llama4}
