"""DBRX: experts whose matrices lie in three parameters of the layer, taken out of them one after the other.

Module names, shapes and defaults are those of Transformers 5.23 (``models/dbrx``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.older.gpt_family import bare_model, even_heads
from planner.catalog.architectures.parts import fused_qkv, layer_norm, token_embedding
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec
from planner.errors import NotModelledError


def read_dbrx(fields: ConfigFields) -> ModelSpec:
    """``dbrx``: two layer norms without bias, products of query, key and value clamped together.

    Raises:
        NotModelledError: dropout of the stream or of embeddings, which no release has.
    """
    if any(fields.is_positive(name, 0.0) for name in ("resid_pdrop", "emb_pdrop")):
        raise NotModelledError(f"{fields.where}: DBRX with dropout is not modelled: no release has it")
    hidden = fields.integer("d_model", "hidden_size", default=2048)
    heads = fields.integer("n_heads", "num_attention_heads", default=16)
    given = fields.optional_section("attn_config")
    kv_heads = given.integer("kv_n_heads", default=1)
    if heads % kv_heads:
        raise fields.fail(f"n_heads {heads} is not divisible by kv_n_heads {kv_heads}")
    if not given.has("clip_qkv"):
        raise NotModelledError(f"{fields.where}: DBRX without clip_qkv is not modelled: it does not run")
    attention = replace(
        even_heads(fields, hidden, heads), n_kv_heads=kv_heads, fused_qkv=True, clips_products=True
    )
    mlp, experts = _experts(fields, hidden)
    chooser = LinearSpec("layer", "router", hidden, mlp.n_experts, "mlp_in")
    norm = replace(layer_norm(hidden, bias=False), scaling="returned")
    block = BlockSpec(
        attention,
        mlp,
        (*fused_qkv(attention, hidden, ("Wqkv", "out_proj"), biases=(False, False)), chooser, *experts),
        (replace(norm, copies=2),),
    )
    n_layers = fields.layers("n_layers", "num_hidden_layers")
    spec = bare_model(fields, [block] * n_layers, token_embedding(fields, hidden, "wte"))
    limit = fields.integer("max_seq_len", "max_position_embeddings", default=2048)
    return replace(spec, max_position_tokens=limit, final_norms=(layer_norm(hidden, bias=False),))


def _experts(fields: ConfigFields, hidden: int) -> tuple[MlpSpec, tuple[LinearSpec, ...]]:
    given = fields.optional_section("ffn_config")
    width = given.integer("ffn_hidden_size", default=3584)
    n_experts, top_k = given.integer("moe_num_experts", default=4), given.integer("moe_top_k", default=1)
    if top_k > n_experts:
        raise given.fail(f"moe_top_k {top_k} is above moe_num_experts {n_experts}")
    act = given.section("ffn_act_fn").text("name", "silu") if given.has("ffn_act_fn") else "silu"
    mlp = MlpSpec(width, True, act, n_experts, top_k, router="selected")
    mlp = replace(mlp, jitters=given.has("moe_jitter_eps"))
    counts = (n_experts, top_k)
    return mlp, (
        LinearSpec("w1", "expert", hidden, width, "mlp_in", False, "parameter", *counts),
        LinearSpec("v1", "expert", hidden, width, "mlp_in", False, "parameter", *counts),
        LinearSpec("w2", "expert", width, hidden, "mlp_mid", False, "parameter", *counts),
    )


READERS = {"dbrx": read_dbrx}
