"""Kin of GPT-2 that came after it: GPT-Neo, GPTBigCode (StarCoder, SantaCoder), CodeGen,
BioGPT.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import MAX_LAYERS, ConfigFields
from planner.catalog.architectures.older.gpt_family import (
    bare_model,
    even_heads,
    gpt_block,
    gpt_model,
    read_gptj,
)
from planner.catalog.architectures.parts import (
    fused_qkv,
    layer_norm,
    lm_head,
    plain_mlp,
    separate_qkv,
    token_embedding,
)
from planner.domain.model import BlockSpec, EmbeddingSpec, LinearSpec, MlpSpec, ModelSpec
from planner.errors import NotModelledError

# BioGptLearnedPositionalEmbedding keeps two rows more than there are positions (modeling_biogpt.py).
_BIOGPT_POSITION_OFFSET = 2


def read_gpt_neo(fields: ConfigFields) -> ModelSpec:
    """``gpt_neo``: query, key and value without biases, every other layer a window; no scaling of scores.

    Each layer keeps a mask of all positions, and a window is a mask too, so that it saves nothing.
    """
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_heads", "num_attention_heads")
    positions = fields.integer("max_position_embeddings", default=2048)
    n_layers = fields.layers("num_layers", "num_hidden_layers", default=24)
    if (n_kinds := _neo_layers(fields)) != n_layers:
        raise fields.fail(f"attention_types is of {n_kinds} layers, and num_layers is {n_layers}")
    attention = replace(
        even_heads(fields, hidden, heads),
        position="learned",
        eager_scores="fp32",
        dropout=fields.is_positive("attention_dropout", 0.0),
        returned_scores="cast",
    )
    query, key, value, _ = separate_qkv(attention, hidden)
    linears = (query, key, value, LinearSpec("out_proj", "attention", hidden, hidden, "attn_out", True))
    drops = fields.is_positive("resid_dropout", 0.0)
    block = gpt_block(fields, attention, linears, "gelu_new", drops=drops)
    spec = gpt_model(fields, [block] * n_layers, positions, n_layers)
    return replace(spec, embedding_dropout=fields.is_positive("embed_dropout", 0.0))


def _neo_layers(fields: ConfigFields) -> int:
    """How many layers ``attention_types`` speaks of: lists of kinds, and how often each comes."""
    given = fields.data.get("attention_types")
    given = [[["global", "local"], 12]] if given is None else given
    is_list = isinstance(given, list) and len(given) <= MAX_LAYERS
    if not is_list or not all(isinstance(each, list) and len(each) == 2 for each in given):
        raise fields.fail("field 'attention_types' must be a list of kinds of layers and their number")
    total = 0
    for kinds, count in given:
        known = isinstance(kinds, list) and all(kind in ("global", "local") for kind in kinds)
        if not known or isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_LAYERS:
            raise fields.fail("field 'attention_types' must name 'global' or 'local' and a number of times")
        total += len(kinds) * count
    return total


def read_gpt_bigcode(fields: ConfigFields) -> ModelSpec:
    """``gpt_bigcode``: GPT-2 with plain matrices, and one head of keys and values for all queries."""
    if fields.flag("add_cross_attention", False):
        problem = "GPTBigCode with cross-attention is no decoder, and decoders alone are modelled"
        raise NotModelledError(f"{fields.where}: {problem}")
    hidden, heads = fields.integer("n_embd", "hidden_size"), fields.integer("n_head", "num_attention_heads")
    positions = fields.integer("n_positions", "max_position_embeddings", default=1024)
    shared = fields.flag("multi_query", True)
    attention = replace(
        even_heads(fields, hidden, heads),
        position="learned",
        fused_qkv=True,
        fused_parts="split" if shared else "split_heads",
        dropout=fields.is_positive("attn_pdrop", 0.1),
    )
    attention = replace(attention, n_kv_heads=1) if shared else attention
    linears = fused_qkv(attention, hidden, ("c_attn", "c_proj"), biases=(True, True))
    drops = fields.is_positive("resid_pdrop", 0.1)
    block = gpt_block(fields, attention, linears, "gelu_pytorch_tanh", drops=drops)
    spec = gpt_model(fields, [block] * fields.layers("n_layer", "num_hidden_layers"), positions, 1)
    return replace(spec, embedding_dropout=fields.is_positive("embd_pdrop", 0.1))


def read_codegen(fields: ConfigFields) -> ModelSpec:
    """``codegen``: GPT-J's block, whose query, key and value are copied out of one product."""

    def fused(block: BlockSpec) -> BlockSpec:
        attention = replace(block.attention, fused_qkv=True, fused_parts="indexed")
        hidden = block.linears[0].in_features
        linears = fused_qkv(attention, hidden, ("qkv_proj", "out_proj"), biases=(False, False))
        return replace(block, attention=attention, linears=linears + block.linears[-2:])

    return read_gptj(fields).with_blocks(fused)


def _biogpt_block(fields: ConfigFields, hidden: int, *, drops: bool) -> BlockSpec:
    width = fields.integer("intermediate_size", default=4096)
    attention = replace(
        even_heads(fields, hidden, fields.integer("num_attention_heads")),
        position="learned",
        eager_scores="compute",
        dropout=fields.is_positive("attention_probs_dropout_prob", 0.1),
    )
    query, key, value, _ = separate_qkv(attention, hidden, qkv_bias=True)
    return BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("hidden_act", "gelu")),
        linears=(
            *(query, key, value),
            LinearSpec("out_proj", "attention", hidden, hidden, "attn_out", True),
            *plain_mlp(hidden, width, ("fc1", "fc2"), bias=True),
        ),
        norms=(layer_norm(hidden, copies=2),),
        dropouts=2 * int(drops),
        inline_mlp=True,
    )


def read_biogpt(fields: ConfigFields) -> ModelSpec:
    """``biogpt``: OPT's block behind norms, with scaled embeddings and learned positions."""
    if fields.is_positive("layerdrop", 0.0) or fields.is_positive("activation_dropout", 0.0):
        raise NotModelledError(f"{fields.where}: BioGPT that drops layers or activations is not modelled")
    hidden = fields.integer("hidden_size")
    positions = fields.integer("max_position_embeddings", default=1024)
    drops = fields.is_positive("hidden_dropout_prob", 0.1)
    block = _biogpt_block(fields, hidden, drops=drops)
    table = token_embedding(fields, hidden)
    head = lm_head(hidden, table.rows, name="output_projection")
    spec = bare_model(fields, [block] * fields.layers("num_hidden_layers"), table, head)
    rows = positions + _BIOGPT_POSITION_OFFSET
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", True),
        max_position_tokens=positions,
        final_norms=(layer_norm(hidden),),
        extra_embeddings=(EmbeddingSpec("embed_positions", rows, hidden, shared=True),),
        embedding_dropout=drops,
        embedding_scale="table" if fields.flag("scale_embedding", True) else "none",
        masks_first=True,
    )


READERS = {
    "gpt_neo": read_gpt_neo,
    "gpt_bigcode": read_gpt_bigcode,
    "codegen": read_codegen,
    "biogpt": read_biogpt,
}
