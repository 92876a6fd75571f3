"""Architectures whose module ships with the checkpoint: Baichuan 1 and 2, ChatGLM 2 to 4, Qwen 1, MiniCPM.

Shapes and names come from ``modeling_baichuan.py``, ``modeling_chatglm.py``, ``modeling_qwen.py`` and
``modeling_minicpm.py`` of the model repositories on the Hub (``baichuan-inc/*``, ``THUDM/*``, ``Qwen/*``,
``openbmb/*``); the reader of each names what in that code decides memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from planner.catalog.architectures.config_fields import ConfigFields
from planner.catalog.architectures.dense.llama_family import read_llama
from planner.catalog.architectures.older.gpt_family import bare_model, even_heads
from planner.catalog.architectures.parts import (
    fused_gated_mlp,
    fused_qkv,
    gated_mlp,
    layer_norm,
    lm_head,
    rms,
    token_embedding,
)
from planner.domain.attention_shape import AttentionSpec, SdpaInput
from planner.domain.model import BlockSpec, EmbeddingSpec, MlpSpec, ModelSpec
from planner.errors import NotModelledError

_BAICHUAN_1_VOCAB, _BAICHUAN_2_VOCAB = 64000, 125696


def read_baichuan(fields: ConfigFields) -> ModelSpec:
    """``baichuan``: Llama's block with query, key and value in one ``W_pack``; 7B rotary, 13B ALiBi;
    Baichuan 2 with NormHead.

    What the code does that memory depends on:

    - Baichuan 7B: rotary in the compute dtype; training needs xformers and uses its causal kernel,
      without a mask tensor.
    - Baichuan 2 7B: rotary in fp32 (``q.float() * cos``), cast back.  With xformers installed, training uses
      its causal kernel.  Else ``F.scaled_dot_product_attention`` with an explicit mask (batch, 1, seq, seq)
      in the compute dtype.
    - 13B: a mask (heads, seq, seq) in the compute dtype, with padding (batch, heads, seq, seq), lives for the
      whole pass; it is built in fp32 on the CPU.  Attention is eager: scores, mask added, ``torch.max``
      against the least number and softmax in the compute dtype, each (batch, heads, seq, seq).  Baichuan 2
      13B avoids that only where xformers is installed (xformers' kernel, in a later revision
      ``F.scaled_dot_product_attention``, both with the mask).
    - Logits stay in the compute dtype, no ``.float()``.
      Baichuan 2 adds ``z_loss_weight * max(logits) ** 2`` even at weight 0.
    - ``NormHead`` normalises its whole weight on every training forward: one more vocabulary x hidden tensor,
      saved for backward as it feeds the product.  It is no ``nn.Linear``, so quantisers leave it in 16-bit.
    - RMS norms work in fp32 (an fp32 product of the hidden size is saved) and return the weight's dtype.
    - Checkpointing wraps each layer with ``torch.utils.checkpoint`` at its default (reentrant in the torch of
      that time).
    """
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    if fields.flag("tie_word_embeddings", False):
        raise NotModelledError(
            f"{fields.where}: Baichuan with tied embeddings is not modelled: no release has them"
        )
    position, limit = _baichuan_positions(fields)
    attention = replace(
        even_heads(fields, hidden, fields.integer("num_attention_heads")), position=position, fused_qkv=True
    )
    attention = replace(attention, fused_parts="selected")
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation=fields.text("hidden_act", "silu")),
        linears=fused_qkv(attention, hidden, ("W_pack", "o_proj"), biases=(False, False))
        + gated_mlp(hidden, width),
        norms=(rms(hidden, copies=2),),
    )
    table = token_embedding(fields, hidden)
    spec = bare_model(fields, [block] * fields.layers("num_hidden_layers"), table)
    return replace(
        spec,
        max_position_tokens=limit,
        final_norms=(rms(hidden),),
        normhead=_has_normhead(fields, table.rows),
        fp32_logits=False,
        remote_code=True,
    )


def _baichuan_positions(fields: ConfigFields) -> tuple[Literal["rope", "alibi"], int]:
    """One ``model_type`` names two modules: 7B configs have ``max_position_embeddings``,
    13B only ``model_max_length``.
    """
    if fields.has("max_position_embeddings"):
        return "rope", fields.integer("max_position_embeddings")
    if fields.has("model_max_length"):
        return "alibi", fields.integer("model_max_length")
    raise fields.fail(
        "neither 'max_position_embeddings' (Baichuan 7B) nor 'model_max_length' (13B): which "
        "Baichuan is this?"
    )


def _has_normhead(fields: ConfigFields, vocab: int) -> bool:
    """Baichuan 2 configs carry ``z_loss_weight`` and a vocabulary of 125,696;
    Baichuan 1 has 64,000 and no such field.
    """
    if fields.has("z_loss_weight") or vocab == _BAICHUAN_2_VOCAB:
        return True
    if vocab == _BAICHUAN_1_VOCAB:
        return False
    raise NotModelledError(
        f"{fields.where}: Baichuan 1 or 2 cannot be told from vocab_size {vocab} without 'z_loss_weight' "
        "(2 has a NormHead)"
    )


def read_chatglm(fields: ConfigFields) -> ModelSpec:
    """``chatglm``: ChatGLM2, ChatGLM3 and GLM-4 as first released;
    the first ChatGLM-6B is another module and is refused.

    What the code does that memory depends on:

    - ``F.scaled_dot_product_attention`` under torch 2, causal without a mask; where some token is padding,
      with a boolean mask (batch, 1, seq, seq).  Queries share ``multi_query_group_num`` key and value heads,
      which are expanded and copied to all heads first.
    - Rotary on half of each head, in the compute dtype, by a scripted function (no upcast).
    - The loss converts logits with ``lm_logits.to(torch.float32)`` and afterwards back:
      fp32 and 16-bit copies coexist.
    - RMS norms compute in fp32 and cast back.  Hidden states run as (seq, batch, hidden) in ChatGLM2 and 3.
    - Checkpointing wraps each layer with ``torch.utils.checkpoint`` at its default.
    - Names: ``word_embeddings``, ``query_key_value``, ``dense``, ``dense_h_to_4h`` (gate and up),
      ``dense_4h_to_h``, ``output_layer``.
    """
    if not fields.has("ffn_hidden_size"):
        raise NotModelledError(
            f"{fields.where}: 'chatglm' without 'ffn_hidden_size' is the first ChatGLM-6B; only its "
            "successors are modelled"
        )
    if fields.has("vision_config"):
        raise NotModelledError(f"{fields.where}: GLM-4V, 'chatglm' with a vision encoder, is not modelled")
    hidden, width = fields.integer("hidden_size"), fields.integer("ffn_hidden_size")
    attention = _chatglm_attention(fields)
    bias = fields.flag("add_bias_linear", False)
    qkv_bias = bias or fields.flag("add_qkv_bias", False)
    make_norm = rms if fields.flag("rmsnorm", True) else layer_norm
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation="silu"),
        linears=fused_qkv(attention, hidden, ("query_key_value", "dense"), biases=(qkv_bias, bias))
        + fused_gated_mlp(hidden, width, ("dense_h_to_4h", "dense_4h_to_h"), bias=bias),
        norms=(make_norm(hidden, copies=2),),
    )
    rows = fields.integer("padded_vocab_size", "vocab_size")
    table = EmbeddingSpec("word_embeddings", rows, hidden)
    spec = bare_model(
        fields, [block] * fields.layers("num_layers"), table, lm_head(hidden, rows, name="output_layer")
    )
    return replace(
        spec,
        max_position_tokens=fields.integer("seq_length", default=2048),
        final_norms=(make_norm(hidden),) if fields.flag("post_layer_norm", True) else (),
        remote_code=True,
    )


def _chatglm_attention(fields: ConfigFields) -> AttentionSpec:
    heads, head_dim = fields.integer("num_attention_heads"), fields.integer("kv_channels", default=128)
    kv_heads = (
        fields.integer("multi_query_group_num") if fields.flag("multi_query_attention", False) else heads
    )
    if heads % kv_heads:
        raise fields.fail(f"num_attention_heads {heads} is not divisible by multi_query_group_num {kv_heads}")
    expands: SdpaInput = "expanded" if kv_heads < heads else "grouped"
    return AttentionSpec(heads, kv_heads, head_dim, head_dim, fused_qkv=True, sdpa_input=expands)


def read_qwen(fields: ConfigFields) -> ModelSpec:
    """``qwen``: Qwen 1 (1.8B, 7B, 14B, 72B); ``intermediate_size`` counts gate and up together,
    ``c_attn`` always has a bias.

    What the code does that memory depends on:

    - FlashAttention when installed (``use_flash_attn`` "auto" or true) in 16-bit; else
      ``F.scaled_dot_product_attention`` with an explicit mask (batch, 1, seq, seq) of the compute dtype that
      every layer builds anew.
    - Rotary in fp32 (``t.float()``), cast back; flash-attn's kernel for it when installed.
    - RMS norms compute in fp32 and cast back; flash-attn's fused one when installed.
    - Logits stay in the compute dtype: ``CrossEntropyLoss`` reads a contiguous shifted copy, no ``.float()``.
    - Checkpointing wraps each layer with ``torch.utils.checkpoint`` at its default.
    - Both branches end in a module called ``c_proj``; ``w1`` is the up, ``w2`` the gate projection
      (``w1(x) * silu(w2(x))``).
    """
    for modality in ("visual", "audio"):
        if fields.has(modality):
            raise NotModelledError(f"{fields.where}: Qwen with a '{modality}' encoder is not modelled")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    attention = replace(even_heads(fields, hidden, heads), fused_qkv=True)
    if fields.integer("kv_channels", default=attention.head_dim) != attention.head_dim:
        raise fields.fail(f"kv_channels times num_attention_heads must be hidden_size {hidden}")
    if fields.flag("tie_word_embeddings", False):
        raise NotModelledError(
            f"{fields.where}: Qwen 1 with tied embeddings is not modelled: no release has them"
        )
    if fields.integer("intermediate_size") % 2:
        raise fields.fail("intermediate_size must be even: it counts two projections")
    width, bias = fields.integer("intermediate_size") // 2, not fields.flag("no_bias", True)
    block = BlockSpec(
        attention=attention,
        mlp=MlpSpec(width, gated=True, activation="silu"),
        linears=fused_qkv(attention, hidden, ("c_attn", "c_proj"), biases=(True, bias))
        + gated_mlp(hidden, width, ("w1", "w2", "c_proj"), bias=bias),
        norms=(rms(hidden, copies=2),),
    )
    table = token_embedding(fields, hidden, "wte")
    spec = bare_model(fields, [block] * fields.layers("num_hidden_layers"), table)
    return replace(
        spec,
        max_position_tokens=fields.integer("seq_length", "max_position_embeddings", default=2048),
        final_norms=(rms(hidden),),
        fp32_logits=False,
        remote_code=True,
    )


def read_minicpm(fields: ConfigFields) -> ModelSpec:
    """``minicpm``: MiniCPM 1 and 2 and MiniCPM4, Llama's modules; sparse attention and experts are refused.

    What the code does that memory depends on (https://github.com/OpenBMB/MiniCPM model/modeling_minicpm.py):

    - Embeddings and both branches are multiplied by numbers; the head reads a quotient of the last norm's
      output and a number.
    - Query and key are turned in fp32 and cast back; keys and values are copied to all heads.
    - Logits are converted with ``.float()``.
    """
    for name, what in (("num_experts", "with experts"), ("sparse_config", "with sparse attention")):
        if fields.has(name):
            raise NotModelledError(f"{fields.where}: MiniCPM {what} is not modelled")
    spec = replace(read_llama(fields), embedding_scale="model", remote_code=True)
    tied = fields.flag("tie_word_embeddings", True)
    return replace(spec.with_blocks(_as_minicpm), tied=tied)


def _as_minicpm(block: BlockSpec) -> BlockSpec:
    attention = block.attention
    expands: SdpaInput = "expanded" if attention.n_kv_heads < attention.n_heads else "grouped"
    attention = replace(attention, rotary_result="fp32", sdpa_input=expands)
    return replace(block, attention=attention, scales_branches=True)


READERS = {
    "baichuan": read_baichuan,
    "chatglm": read_chatglm,
    "qwen": read_qwen,
    "minicpm": read_minicpm,
}
