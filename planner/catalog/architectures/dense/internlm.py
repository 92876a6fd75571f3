"""InternLM 1, 2 (and 2.5) and 3.

InternLM 1 and 2 ship their code with the checkpoint (``modeling_internlm.py``, ``modeling_internlm2.py`` of
``internlm/*`` on the Hub); 3 is also in Transformers 5.23 (``models/internlm3``).  All have Llama's block;
names and biases differ.
"""

from __future__ import annotations

from dataclasses import replace

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import attention_of, decoder, llama_block
from planner.catalog.architectures.parts import fused_qkv, gated_mlp, lm_head, rms, token_embedding
from planner.domain.model import BlockSpec, MlpSpec, ModelSpec


def read_internlm(fields: ConfigFields) -> ModelSpec:
    """``internlm``: Llama with biases on query, key, value and output projection (7B) or none (20B);
    logits stay in 16-bit.
    """
    bias = fields.flag("bias", True)
    block = llama_block(fields, attention_of(fields), qkv_bias=bias, out_bias=bias)
    return replace(
        decoder(fields, [block] * fields.layers("num_hidden_layers")), fp32_logits=False, remote_code=True
    )


def read_internlm2(fields: ConfigFields) -> ModelSpec:
    """``internlm2``: query, key and value in one ``wqkv``; ``w1`` is the gate, ``w3`` the up,
    ``w2`` the down projection.

    Logits are turned into fp32 (``logits = logits.float()``) before the loss.  The head is called ``output``.
    """
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    attention = replace(attention_of(fields), fused_qkv=True, fused_parts="slices")
    bias = fields.flag("bias", True)
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation=fields.text("hidden_act", "silu")),
        linears=fused_qkv(attention, hidden, ("wqkv", "wo"), biases=(bias, bias))
        + gated_mlp(hidden, width, ("w1", "w3", "w2")),
        norms=(rms(hidden, copies=2),),
    )
    spec = decoder(fields, [block] * fields.layers("num_hidden_layers"))
    table = token_embedding(fields, hidden, "tok_embeddings")
    return replace(
        spec, token_embedding=table, head=lm_head(hidden, table.rows, name="output"), remote_code=True
    )


def read_internlm3(fields: ConfigFields) -> ModelSpec:
    """``internlm3``: the same modules as Llama;
    the released files call the bias switches ``qkv_bias`` and ``bias``.
    """
    bias = fields.flag("attention_bias", fields.flag("bias", False))
    qkv_bias, mlp_bias = fields.flag("qkv_bias", bias), fields.flag("mlp_bias", bias)
    attention = attention_of(fields, kv_default=2, head_dim_default=128)
    block = llama_block(fields, attention, qkv_bias=qkv_bias, out_bias=bias, mlp_bias=mlp_bias)
    return decoder(fields, [block] * fields.layers("num_hidden_layers"))


READERS = {"internlm": read_internlm, "internlm2": read_internlm2, "internlm3": read_internlm3}
