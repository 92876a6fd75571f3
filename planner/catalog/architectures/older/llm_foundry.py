"""MPT as LLM Foundry itself builds it, now and in 2023;
the ``mpt`` of Transformers has neither position table nor biases.

Module names and shapes of ``mpt_causal_lm`` are those of LLM Foundry 0.7
(``llmfoundry/models/mpt/modeling_mpt.py`` and ``configuration_mpt.py``).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.older.gpt_family import bare_model, even_heads
from planner.catalog.architectures.parts import fused_qkv, layer_norm, plain_mlp, token_embedding
from planner.domain.model import BlockSpec, EmbeddingSpec, MlpSpec, ModelSpec, NormSpec


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
    spec = bare_model(fields, [block] * fields.layers("n_layers"), table)
    return replace(
        spec,
        tied=fields.flag("tie_word_embeddings", True),
        max_position_tokens=positions,
        final_norms=(layer_norm(hidden, bias=bias),),
        extra_embeddings=(EmbeddingSpec("wpe", positions, hidden, shared=True),),
    )


def read_mosaic_gpt(fields: ConfigFields) -> ModelSpec:
    """``mosaic_gpt``, MPT before it got its name (mosaicml/mpt-1b-redpajama-200b): ALiBi,
    norms of query and key, tied head.

    Read in ``examples/llm/src/models`` of mosaicml/llm-foundry at e205fc8b (2023-04), which the checkpoint's
    own module repeats.  What the code does that memory depends on:

    - ``attn_impl`` ``torch``, the checkpoint's default, is eager attention: scores plus bias plus mask,
      softmax (fp32 under autocast, else the compute dtype; described here as under autocast), product.  There
      is no call of torch's fused kernels; ``triton`` is a FlashAttention with bias, for which ``flash2``
      stands.
    - The ALiBi bias is (1, heads, 1, seq), shared by all layers.  Each layer makes and keeps a causal mask
      (seq, seq) of its own: one byte per pair, not counted.
    - ``q_ln`` and ``k_ln`` normalise query and key over all heads at once and are ordinary layer norms.
    - ``low_precision_layernorm`` lets norms run in the compute dtype: then a norm keeps 2 bytes per feature
      of its input where 4 are counted here.
    - Logits come from the token table and stay in the compute dtype; the module has no loss of its own.
    - ``no_bias`` (false by default) removes the biases of matrices and norms.
    """
    hidden, heads = fields.integer("d_model"), fields.integer("n_heads")
    bias, alibi = not fields.flag("no_bias", False), fields.flag("alibi", False)
    width = fields.integer("mlp_ratio", default=4) * hidden
    positions = fields.integer("max_seq_len", default=2048)
    attention = replace(
        even_heads(fields, hidden, heads), position="alibi" if alibi else "learned", fused_qkv=True
    )
    norms: tuple[NormSpec, ...] = (layer_norm(hidden, copies=2, bias=bias),)
    if fields.flag("attn_qk_ln", False):
        norms += (replace(layer_norm(hidden, copies=2, bias=bias), on="heads"),)
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=False, activation="gelu"),
        linears=fused_qkv(attention, hidden, ("Wqkv", "out_proj"), biases=(bias, bias))
        + plain_mlp(hidden, width, ("mlp_up", "mlp_down"), bias=bias),
        norms=norms,
    )
    table = token_embedding(fields, hidden, "wte")
    spec = bare_model(fields, [block] * fields.layers("n_layers"), table)
    return replace(
        spec,
        tied=True,
        max_position_tokens=positions,
        final_norms=(layer_norm(hidden, bias=bias),),
        extra_embeddings=() if alibi else (EmbeddingSpec("wpe", positions, hidden, shared=True),),
        fp32_logits=False,
        remote_code=True,
    )


READERS = {"mpt_causal_lm": read_mpt_causal_lm, "mosaic_gpt": read_mosaic_gpt}
