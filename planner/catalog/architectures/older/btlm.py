"""BTLM of Cerebras and Opentensor: GPT-2's block with SwiGLU and ALiBi,
whose module ships with the checkpoint.

Read in ``modeling_btlm.py`` as a public fork of text-generation-inference repeats it
(``custom_modeling/btlm_modeling.py``: ShardedBTLMModel, ShardedBTLMBlock, ShardedBTLMMLP).
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.older.gpt_family import bare_model, even_heads
from planner.catalog.architectures.parts import fused_qkv, layer_norm, token_embedding
from planner.domain.model import BlockSpec, LinearSpec, MlpSpec, ModelSpec
from planner.errors import NotModelledError


def read_btlm(fields: ConfigFields) -> ModelSpec:
    """``btlm``: fused ``c_attn`` and MLP as ``Conv1D`` with biases, no table of positions, tied head.

    What the code does that memory depends on:

    - The position bias, an fp32 number for each head and pair of positions, is made once and lives for the
      whole pass, also where Axolotl puts FlashAttention in, which does not read it.
    - Attention is eager, without a call of torch's fused kernels.
    - Embeddings and logits are multiplied in place; logits stay in the compute dtype, and the loss reads a
      contiguous shifted copy.
    """
    if (
        fields.text("activation_function", "gelu") != "swiglu"
        or fields.text("position_embedding_type", "") != "alibi"
    ):
        raise NotModelledError(f"{fields.where}: BTLM without SwiGLU or ALiBi is not modelled")
    hidden, heads = fields.integer("n_embd", "hidden_size"), fields.integer("n_head", "num_attention_heads")
    width = fields.integer("n_inner", default=4 * hidden)
    attention = replace(
        even_heads(fields, hidden, heads),
        position="alibi",
        position_bias=True,
        fused_qkv=True,
        eager_scores="compute",
        dropout=fields.is_positive("attn_pdrop", 0.1),
    )
    inner = [LinearSpec(name, "mlp", hidden, width, "mlp_in", True, "conv1d") for name in ("c_fc2", "c_fc")]
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation="silu"),
        linears=(
            *fused_qkv(attention, hidden, ("c_attn", "c_proj"), biases=(True, True), kind="conv1d"),
            *inner,
            LinearSpec("c_proj", "mlp", width, hidden, "mlp_mid", True, "conv1d"),
        ),
        norms=(layer_norm(hidden, copies=2),),
        dropouts=2 * int(fields.is_positive("resid_pdrop", 0.1)),
    )
    table = token_embedding(fields, hidden, "wte")
    spec = bare_model(fields, [block] * fields.layers("n_layer", "num_hidden_layers"), table)
    return replace(
        spec,
        embedding_dropout=fields.is_positive("embd_pdrop", 0.1),
        drops_by_module=True,
        tied=fields.flag("tie_word_embeddings", True),
        max_position_tokens=fields.integer("n_positions", "max_position_embeddings", default=1024),
        final_norms=(layer_norm(hidden),),
        fp32_logits=False,
        remote_code=True,
    )


READERS = {"btlm": read_btlm}
