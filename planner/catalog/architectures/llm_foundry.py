"""MPT as LLM Foundry itself builds it, with a table of positions and with biases; the ``mpt`` of Transformers has neither.

Module names and shapes are those of LLM Foundry 0.7 (``llmfoundry/models/mpt/modeling_mpt.py`` and ``configuration_mpt.py``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.fields import ConfigFields
from planner.catalog.architectures.gpt_family import bare_model, even_heads
from planner.catalog.architectures.parts import fused_qkv, layer_norm, lm_head, plain_mlp, token_embedding
from planner.domain.model import BlockSpec, EmbeddingSpec, MlpSpec, ModelSpec


def read_mpt_causal_lm(fields: ConfigFields) -> ModelSpec:
    """``mpt_causal_lm``, the ``model.name`` of its YAML files: learned positions, fused ``Wqkv``, tied head.

    ``no_bias`` (false by default) decides over the biases of matrices and norms.
    """
    hidden, heads = fields.integer("d_model"), fields.integer("n_heads")
    bias = not fields.flag("no_bias", False)
    width = fields.integer("expansion_ratio", default=4) * hidden
    positions = fields.integer("max_seq_len", default=2048)
    attention = replace(even_heads(fields, hidden, heads), position="learned", fused_qkv=True)
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation="gelu"),
        linears=fused_qkv(attention, hidden, ("Wqkv", "out_proj"), biases=(bias, bias))
        + plain_mlp(hidden, width, ("up_proj", "down_proj"), bias=bias),
        norms=(layer_norm(hidden, copies=2, bias=bias),),
    )
    table = token_embedding(fields, hidden, "wte")
    spec = bare_model(fields, [block] * fields.layers("n_layers"), table, lm_head(hidden, table.rows))
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", True),
        max_position_tokens=positions,
        final_norms=(layer_norm(hidden, bias=bias),),
        extra_embeddings=(EmbeddingSpec("wpe", positions, hidden),),
    )


READERS = {"mpt_causal_lm": read_mpt_causal_lm}
