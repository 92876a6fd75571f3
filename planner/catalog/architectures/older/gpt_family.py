"""GPT-2, GPT-J, GPT-NeoX (Pythia) and OPT: the decoders that came before Llama's block.

Module names, shapes and defaults are those of Transformers 5.23
(``models/<model_type>/modeling_<model_type>.py`` and ``configuration_<model_type>.py``).  A default named
here is the default of that configuration class.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.parts import (
    fused_qkv,
    group_layers,
    layer_norm,
    lm_head,
    plain_mlp,
    rotary_width,
    separate_qkv,
    token_embedding,
)
from planner.domain.attention_shape import AttentionSpec
from planner.domain.model import BlockSpec, EmbeddingSpec, LinearSpec, MlpSpec, ModelSpec
from planner.errors import NotModelledError

# OPTLearnedPositionalEmbedding keeps two rows more than there are positions (modeling_opt.py).
_OPT_POSITION_OFFSET = 2


def even_heads(fields: ConfigFields, hidden: int, heads: int) -> AttentionSpec:
    """Multi-head attention whose heads share the hidden features evenly; most architectures before Llama."""
    if hidden % heads:
        raise fields.fail(f"hidden size {hidden} is not divisible by {heads} attention heads")
    head_dim = hidden // heads
    return AttentionSpec(heads, heads, head_dim, head_dim)


def bare_model(
    fields: ConfigFields, blocks: list[BlockSpec], table: EmbeddingSpec, head: LinearSpec | None = None
) -> ModelSpec:
    """A model of ``blocks`` between ``table`` and ``head`` (one of the table's shape unless another is
    given), untied and without outer norms; callers ``replace`` the rest.
    """
    return ModelSpec(
        id="",
        hub_id="",
        architecture=fields.text("model_type", ""),
        hidden_size=blocks[0].linears[0].in_features,
        vocab_size=table.rows,
        groups=group_layers(blocks),
        token_embedding=table,
        head=head or lm_head(table.width, table.rows),
        tied=False,
        max_position_tokens=None,
    )


def gpt_block(
    fields: ConfigFields,
    attention: AttentionSpec,
    linears: tuple[LinearSpec, ...],
    activation: str,
    *,
    drops: bool,
) -> BlockSpec:
    """GPT-2's block around the matrices of its attention; variables keep what branches read and return."""
    hidden = linears[0].in_features
    width = fields.integer("n_inner", "intermediate_size", default=4 * hidden)
    return BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("activation_function", activation)),
        linears=linears + plain_mlp(hidden, width, ("c_fc", "c_proj"), bias=True, kind=linears[0].kind),
        norms=(layer_norm(hidden, copies=2),),
        dropouts=2 * int(drops),
        drops_inside=True,
        keeps_attended=True,
        keeps_normed=("sum", "sum"),
    )


def gpt_model(fields: ConfigFields, blocks: list[BlockSpec], positions: int, n_masks: int = 0) -> ModelSpec:
    """GPT-2's model around its blocks; ``n_masks``: how many masks of all pairs of positions it keeps."""
    hidden = blocks[0].linears[0].in_features
    return replace(
        bare_model(fields, blocks, token_embedding(fields, hidden, "wte")),
        tied=fields.flag("tie_word_embeddings", True),
        max_position_tokens=positions,
        final_norms=(layer_norm(hidden),),
        extra_embeddings=(EmbeddingSpec("wpe", positions, hidden, shared=True),),
        drops_by_module=True,
        mask_bytes=n_masks * positions**2,
        checkpoint_dtype="fp32",
    )


def read_gpt2(fields: ConfigFields) -> ModelSpec:
    """``gpt2``: fused ``c_attn`` and MLP as ``Conv1D`` (weight stored transposed), learned positions,
    tied head.
    """
    if fields.flag("add_cross_attention", False):
        raise NotModelledError(
            f"{fields.where}: GPT-2 with cross-attention is an encoder-decoder part, which is not modelled"
        )
    hidden, heads = fields.integer("n_embd", "hidden_size"), fields.integer("n_head", "num_attention_heads")
    attention = replace(
        even_heads(fields, hidden, heads),
        position="learned",
        fused_qkv=True,
        eager_scores="compute",
        dropout=fields.is_positive("attn_pdrop", 0.1),
    )
    linears = fused_qkv(attention, hidden, ("c_attn", "c_proj"), biases=(True, True), kind="conv1d")
    drops = fields.is_positive("resid_pdrop", 0.1)
    block = gpt_block(fields, attention, linears, "gelu_new", drops=drops)
    spec = gpt_model(
        fields,
        [block] * fields.layers("n_layer", "num_hidden_layers"),
        fields.integer("n_positions", "max_position_embeddings", default=1024),
    )
    return replace(spec, embedding_dropout=fields.is_positive("embd_pdrop", 0.1))


def read_gptj(fields: ConfigFields) -> ModelSpec:
    """``gptj``: attention and MLP in parallel behind one norm, rotary positions, a head with bias."""
    hidden, heads = fields.integer("n_embd", "hidden_size"), fields.integer("n_head", "num_attention_heads")
    width = fields.integer("n_inner", default=4 * hidden)
    drops = fields.is_positive("attn_pdrop", 0.0)
    attention = replace(
        even_heads(fields, hidden, heads),
        eager_scores="fp32",
        dropout=drops,
        rotary_form="repeated_pairs",
        rotary_join="forward",
    )
    attention = replace(
        attention, rotary_width=fields.count("rotary_dim", default=64), returned_scores="cast"
    )
    query, key, value, _ = separate_qkv(attention, hidden)
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("activation_function", "gelu_new")),
        linears=(
            *(query, key, value),
            LinearSpec("out_proj", "attention", hidden, hidden, "attn_out"),
            *plain_mlp(hidden, width, ("fc_in", "fc_out"), bias=True),
        ),
        norms=(layer_norm(hidden),),
        parallel=True,
        dropouts=2 * int(fields.is_positive("resid_pdrop", 0.0)),
    )
    table = token_embedding(fields, hidden, "wte")
    head = lm_head(hidden, table.rows, bias=True)
    spec = bare_model(fields, [block] * fields.layers("n_layer", "num_hidden_layers"), table, head)
    return replace(
        spec,
        embedding_dropout=fields.is_positive("embd_pdrop", 0.0),
        drops_by_module=True,
        tied=fields.flag("tie_word_embeddings", False),
        max_position_tokens=fields.integer("n_positions", "max_position_embeddings", default=2048),
        final_norms=(layer_norm(hidden),),
        checkpoint_dtype="fp32",
    )


def read_gpt_neox(fields: ConfigFields) -> ModelSpec:
    """``gpt_neox``: GPT-NeoX-20B and Pythia; parallel branches, each behind its own norm.

    The head is ``lm_head`` in Transformers 5 and ``embed_out`` in Transformers 4 and in the checkpoints.
    """
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    attention = even_heads(fields, hidden, fields.integer("num_attention_heads"))
    attention = replace(
        attention,
        fused_qkv=True,
        fused_parts="split_heads",
        joined_rotary=True,
        rotary_width=rotary_width(fields, attention.head_dim, 0.25, "rotary_pct"),
        dropout=fields.is_positive("attention_dropout", 0.0),
    )
    bias = fields.flag("attention_bias", True)
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("hidden_act", "gelu")),
        linears=fused_qkv(attention, hidden, ("query_key_value", "dense"), biases=(bias, bias))
        + plain_mlp(hidden, width, ("dense_h_to_4h", "dense_4h_to_h"), bias=True),
        norms=(layer_norm(hidden, copies=2),),
        parallel=fields.flag("use_parallel_residual", True),
        dropouts=2 * int(fields.is_positive("hidden_dropout", 0.0)),
    )
    table = token_embedding(fields, hidden, "embed_in")
    spec = bare_model(fields, [block] * fields.layers("num_hidden_layers"), table)
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", False),
        max_position_tokens=fields.integer("max_position_embeddings", default=2048),
        final_norms=(layer_norm(hidden),),
        embedding_dropout=fields.is_positive("hidden_dropout", 0.0),
        drops_by_module=True,
    )


def read_opt(fields: ConfigFields) -> ModelSpec:
    """``opt``: learned positions (two spare rows), ReLU MLP, tied head.

    OPT-350M embeds into fewer features than it computes with (``word_embed_proj_dim``): ``project_in`` and
    ``project_out`` stand between, and as it normalises after each branch (``do_layer_norm_before`` false) it
    has no final norm.
    """
    hidden = fields.integer("hidden_size")
    embed_width = fields.integer("word_embed_proj_dim", default=hidden)
    positions = fields.integer("max_position_embeddings", default=2048)
    table = EmbeddingSpec("embed_tokens", fields.integer("vocab_size"), embed_width)
    affine = fields.flag("layer_norm_elementwise_affine", True)
    has_final_norm = fields.flag("do_layer_norm_before", True) and not fields.flag(
        "_remove_final_layer_norm", False
    )
    block = _opt_block(fields, hidden)
    spec = bare_model(fields, [block] * fields.layers("num_hidden_layers"), table)
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", True),
        max_position_tokens=positions,
        final_norms=(layer_norm(hidden, bias=affine, weight=affine),) if has_final_norm else (),
        extra_embeddings=(EmbeddingSpec("embed_positions", positions + _OPT_POSITION_OFFSET, hidden),),
        extra_linears=_opt_projections(hidden, embed_width),
        masks_first=True,
    )


def _opt_block(fields: ConfigFields, hidden: int) -> BlockSpec:
    width, bias = fields.integer("ffn_dim"), fields.flag("enable_bias", True)
    affine = fields.flag("layer_norm_elementwise_affine", True)
    attention = replace(
        even_heads(fields, hidden, fields.integer("num_attention_heads")),
        position="learned",
        scales_query=True,
        dropout=fields.is_positive("attention_dropout", 0.0),
    )
    query, key, value, _ = separate_qkv(attention, hidden, qkv_bias=bias)
    return BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation=fields.text("activation_function", "relu")),
        linears=(
            *(query, key, value),
            LinearSpec("out_proj", "attention", hidden, hidden, "attn_out", bias),
            *plain_mlp(hidden, width, ("fc1", "fc2"), bias=bias),
        ),
        norms=(layer_norm(hidden, copies=2, bias=affine, weight=affine),),
        dropouts=2 * int(fields.is_positive("dropout", 0.1)),
        reads_stream=not fields.flag("do_layer_norm_before", True),
        norms_sums=not fields.flag("do_layer_norm_before", True),
        inline_mlp=True,
    )


def _opt_projections(hidden: int, embed_width: int) -> tuple[LinearSpec, ...]:
    if embed_width == hidden:
        return ()
    # project_out reads the last hidden state (hidden features);
    # the head then reads its output (embed_width features).
    return (
        LinearSpec("project_out", "embedding_projection", hidden, embed_width, "head_in"),
        LinearSpec("project_in", "embedding_projection", embed_width, hidden, "embed"),
    )


READERS = {"gpt2": read_gpt2, "gptj": read_gptj, "gpt_neox": read_gpt_neox, "opt": read_opt}
