"""BLOOM, Falcon and MPT.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.older.gpt_family import bare_model, even_heads
from planner.catalog.architectures.parts import fused_qkv, layer_norm, plain_mlp, token_embedding
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, MlpSpec, ModelSpec, NormSpec
from planner.errors import NotModelledError

# BloomMLP and MptMLP multiply by four in code; no field changes it.
_MLP_RATIO = 4
_MPT_ATTENTION = "multihead_attention"


def read_bloom(fields: ConfigFields) -> ModelSpec:
    """``bloom``: ALiBi, fused ``query_key_value``, biases everywhere, a norm after the token table,
    tied head.

    ``final_norms`` holds ``word_embeddings_layernorm`` and ``ln_f``, the two norms outside the blocks.
    """
    hidden = fields.integer("n_embed", "hidden_size")
    heads = fields.integer("n_head", "num_attention_heads")
    drops = fields.is_positive("attention_dropout", 0.0)
    attention = replace(even_heads(fields, hidden, heads), position="alibi", fused_qkv=True, dropout=drops)
    attention = replace(attention, returned_scores="cast", fused_parts="selected")
    width = _MLP_RATIO * hidden
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation="bloom_gelu"),
        linears=fused_qkv(attention, hidden, ("query_key_value", "dense"), biases=(True, True))
        + plain_mlp(hidden, width, ("dense_h_to_4h", "dense_4h_to_h"), bias=True),
        norms=(layer_norm(hidden, copies=2),),
        dropouts=2 * int(fields.is_positive("hidden_dropout", 0.0)),
        keeps_normed=("norm", "norm"),
        sums_inside="both",
    )
    table = token_embedding(fields, hidden, "word_embeddings")
    spec = bare_model(fields, [block] * fields.layers("n_layer", "num_hidden_layers"), table)
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", True),
        # ALiBi has no table to run out of; seq_length is what the checkpoint was trained with.
        max_position_tokens=fields.optional_integer("seq_length"),
        final_norms=(layer_norm(hidden), layer_norm(hidden)),
        embedding_norm=True,
    )


def read_falcon(fields: ConfigFields) -> ModelSpec:
    """``falcon``: multi-query, parallel, one norm (7B), or grouped queries with two norms (40B,
    ``new_decoder_architecture``).
    """
    hidden = fields.integer("n_embed", "hidden_size")
    attention = _falcon_attention(fields, hidden)
    bias = fields.flag("bias", False)
    width = fields.integer("ffn_hidden_size", default=4 * hidden)
    parallel, norms = _falcon_norms(fields, hidden)
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("activation", "gelu")),
        # FalconLinear derives from nn.Linear.
        linears=fused_qkv(
            attention, hidden, ("query_key_value", "dense"), biases=(bias, bias), kind="subclass"
        )
        + plain_mlp(hidden, width, ("dense_h_to_4h", "dense_4h_to_h"), bias=bias, kind="subclass"),
        norms=norms,
        parallel=parallel,
        branch_sum="in_place",
        norms_first=parallel and sum(norm.copies for norm in norms) == 2,
    )
    table = token_embedding(fields, hidden, "word_embeddings")
    spec = bare_model(fields, [block] * fields.layers("num_hidden_layers", "n_layer"), table)
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", True),
        max_position_tokens=fields.integer("max_position_embeddings", default=2048),
        final_norms=(layer_norm(hidden),),
    )


def _falcon_attention(fields: ConfigFields, hidden: int) -> AttentionSpec:
    heads = fields.integer("num_attention_heads", "n_head")
    attention = replace(
        even_heads(fields, hidden, heads), fused_qkv=True, eager_scores="compute", returned_scores="softmax"
    )
    # modeling_falcon.py passes allow_is_causal_skip=False, for the sake of ALiBi.
    attention = replace(attention, makes_mask=True, fused_parts="selected")
    kv_heads = fields.integer("num_kv_heads", "n_head_kv", default=heads)
    if fields.flag("new_decoder_architecture", False):
        if heads % kv_heads:
            raise fields.fail(f"{heads} attention heads are not divisible by num_kv_heads {kv_heads}")
        attention = replace(attention, sdpa_input="expanded", fused_parts="indexed")
    elif fields.flag("multi_query", True):
        kv_heads = 1
        attention = replace(attention, sdpa_input="broadcast", fused_parts="indexed")
    elif kv_heads != heads:
        # The module sizes query_key_value for one key and value per head whatever num_kv_heads says.
        raise fields.fail(f"num_kv_heads {kv_heads} needs new_decoder_architecture or multi_query")
    return replace(
        attention, n_kv_heads=kv_heads, position="alibi" if fields.flag("alibi", False) else "rope"
    )


def _falcon_norms(fields: ConfigFields, hidden: int) -> tuple[bool, tuple[NormSpec, ...]]:
    """Whether the branches run in parallel, and the norms of a layer."""
    parallel, new = fields.flag("parallel_attn", True), fields.flag("new_decoder_architecture", False)
    count = fields.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    if not parallel:
        if new:
            raise fields.fail("new_decoder_architecture needs parallel_attn")
        return False, (layer_norm(hidden, copies=2),)
    if count not in (1, 2) or (count == 2 and not new):
        raise fields.fail(
            f"num_ln_in_parallel_attn {count} does not go with new_decoder_architecture {str(new).lower()}"
        )
    return True, (layer_norm(hidden, copies=count),)


def read_mpt(fields: ConfigFields) -> ModelSpec:
    """``mpt``: ALiBi, fused ``Wqkv``, no bias in matrices or norms, tied head.

    Transformers' port reads neither ``no_bias`` nor ``expansion_ratio`` nor ``attn_config.alibi`` and has one
    key and value per head.  Configs that ask for anything else would build another model in MosaicML's own
    code, and are refused.  With ``attn_config.clip_qkv`` a clamp follows ``Wqkv``; its saved input is not
    part of this description.
    """
    hidden, heads = fields.integer("d_model", "hidden_size"), fields.integer("n_heads", "num_attention_heads")
    _refuse_foreign_mpt(fields)
    attention = replace(even_heads(fields, hidden, heads), position="alibi", fused_qkv=True)
    attention = replace(attention, eager_scores="fp32_biased", returned_scores="cast", fills_scores=True)
    width = _MLP_RATIO * hidden
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation="gelu"),
        linears=fused_qkv(attention, hidden, ("Wqkv", "out_proj"), biases=(False, False))
        + plain_mlp(hidden, width, ("up_proj", "down_proj"), bias=False),
        norms=(layer_norm(hidden, copies=2, bias=False),),
        keeps_attended=True,
        keeps_normed=("norm", "norm"),
        sums_inside="mlp",
    )
    table = token_embedding(fields, hidden, "wte")
    spec = bare_model(fields, [block] * fields.layers("n_layers", "num_hidden_layers"), table)
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", True),
        max_position_tokens=fields.integer("max_seq_len", default=2048),
        final_norms=(layer_norm(hidden, bias=False),),
    )


def _refuse_foreign_mpt(fields: ConfigFields) -> None:
    attention = fields.optional_section("attn_config")
    foreign = {
        "no_bias false": not fields.flag("no_bias", True),
        "expansion_ratio other than 4": fields.integer("expansion_ratio", default=_MLP_RATIO) != _MLP_RATIO,
        "attn_config.attn_type other than multihead_attention": attention.text("attn_type", _MPT_ATTENTION)
        != _MPT_ATTENTION,
        "attn_config.qk_ln true": attention.flag("qk_ln", False),
        "attn_config.alibi false": not attention.flag("alibi", True),
    }
    for what, present in foreign.items():
        if present:
            raise NotModelledError(
                f"{fields.where}: MPT with {what} is not modelled: Transformers' own MPT does not build it"
            )


READERS = {"bloom": read_bloom, "falcon": read_falcon, "mpt": read_mpt}
