"""GPT-2 as the book "Build a Large Language Model From Scratch" writes it.

Names and shapes are those of ``GPTModel`` in rasbt/LLMs-from-scratch
``ch05/10_llm-training-speed/00_orig.py``.  It uses ``nn.Linear``, no bias in query, key and value, an untied
head, and 16-bit logits where the model is 16-bit.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.older.gpt_family import bare_model, even_heads
from planner.catalog.architectures.parts import layer_norm, plain_mlp, separate_qkv, token_embedding
from planner.domain.model import BlockSpec, EmbeddingSpec, MlpSpec, ModelSpec


def read_gpt_from_scratch(fields: ConfigFields) -> ModelSpec:
    """``gpt_from_scratch``: separate query, key and value, learned positions,
    the keys of ``GPT_CONFIG_124M``.

    ``activation_function`` is ours: the book writes GELU out (``gelu_new``), its later scripts take
    ``nn.GELU``, one kernel.  The same step of those scripts takes ``nn.LayerNorm`` for the book's norm of six
    operators, so one key says both.  ``drop_rate`` is one probability for attention, both branches and the
    embeddings.
    """
    hidden, heads = fields.integer("emb_dim"), fields.integer("n_heads")
    positions = fields.integer("context_length")
    bias, drops = fields.flag("qkv_bias", False), fields.is_positive("drop_rate", 0.1)
    activation = fields.text("activation_function", "gelu_new")
    attention = replace(
        even_heads(fields, hidden, heads), position="learned", eager_scores="compute", dropout=drops
    )
    norm = replace(layer_norm(hidden), scaling="operators" if activation == "gelu_new" else "cast")
    projections = separate_qkv(attention, hidden, qkv_bias=bias, out_bias=True)
    names = ("W_query", "W_key", "W_value", "out_proj")
    linears = tuple(replace(linear, name=name) for linear, name in zip(projections, names, strict=True))
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(4 * hidden, gated=False, activation=activation),
        linears=linears + plain_mlp(hidden, 4 * hidden, ("layers.0", "layers.2"), bias=True),
        norms=(replace(norm, copies=2),),
        dropouts=2 * int(drops),
    )
    table = token_embedding(fields, hidden, "tok_emb")
    spec = bare_model(fields, [block] * fields.layers("n_layers"), table)
    return replace(
        spec,
        tied=False,
        max_position_tokens=positions,
        final_norms=(norm,),
        embedding_dropout=drops,
        drops_by_module=True,
        extra_embeddings=(EmbeddingSpec("pos_emb", positions, hidden, shared=True),),
        checkpoint_dtype="fp32",
        fp32_logits=False,
    )


READERS = {"gpt_from_scratch": read_gpt_from_scratch}
