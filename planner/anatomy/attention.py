"""What attention keeps for backward: fused kernels, torch's unfused form, and attention written out in Python."""

from __future__ import annotations

from planner.anatomy.ledger import BlockView, Step
from planner.anatomy.norms import norm_amounts
from planner.domain.recipe import Number


def attention_steps(view: BlockView, stream: Number) -> list[Step]:
    """Head norms, rotary positions and attention itself, in forward order."""
    attention, regime = view.block.attention, view.regime
    lo = regime.linear_out
    qkv = (attention.q_width + attention.k_width + attention.v_width) * lo
    steps = _head_norm_steps(view, stream + qkv)
    if attention.position == "rope":
        rotated = max(lo, regime.norm_out)
        live = stream + qkv + (3 * attention.q_width + attention.k_width) * rotated
        steps.append(Step("rope", 0, live, live))
    if view.recipe.attention == "eager":
        steps.append(_eager_step(view, stream))
    elif attention.sdpa_input == "broadcast" and view.recipe.attention == "sdpa":
        steps.append(_unfused_step(view, stream))
    else:
        steps.append(_fused_step(view, stream))
    return steps


def _head_norm_steps(view: BlockView, live: Number) -> list[Step]:
    """Norms of query, key and latents.

    One that keeps a slice of a fused product as it is keeps all of that product: the value's part too, which written-out
    attention copies.  Source: torch 2.13 storage of views; seen on a block of ``mosaic_gpt``.
    """
    norms = [norm for norm in view.block.norms if norm.on in ("heads", "latent")]
    if not norms:
        return []
    slices = view.block.attention.fused_qkv and not view.regime.autocast and all(norm.kind == "layer" for norm in norms)
    held = view.block.attention.v_width * view.regime.linear_out if slices and view.recipe.attention == "eager" else 0
    amounts = [(norm.copies, norm_amounts(view, norm, view.regime.linear_out)) for norm in norms]
    return [
        Step(
            "head_norms",
            saves=held + sum(copies * amount.saves for copies, amount in amounts),
            forward=live + sum(copies * amount.forward for copies, amount in amounts),
            backward=live + sum(copies * amount.backward for copies, amount in amounts),
            fixed_saves=sum(copies * amount.fixed_saves for copies, amount in amounts),
        )
    ]


def _fused_step(view: BlockView, stream: Number) -> Step:
    """A kernel that keeps query, key, value, output and one fp32 number per row and head (log-sum-exp).

    Keys and values are expanded to all heads first where the code does so, or where a mask is given.  A mask of another dtype
    than the query is turned into the query's in each layer and kept: one element per token and key.  A value that is a slice of
    one fused product keeps all of that product alive; rotary positions make new queries and keys beside it.
    Source: transformers 5.23 integrations/sdpa_attention.py; torch 2.13 derivatives.yaml, ATen/native/transformers/attention.cpp
    convert_boolean_attn_mask, autocast_mode.cpp (casts the arguments of the product).
    Ignored: rows padded to 16 elements, which copy a shared mask too where the length is no multiple of 16.
    """
    attention, regime = view.block.attention, view.regime
    masked = view.padded and view.recipe.attention == "sdpa" and view.stack.sdpa_mask != "none"
    c, lo = regime.compute, regime.linear_out
    q, k, v, out = attention.q_width, attention.k_width, attention.v_width, attention.out_width
    expanded = attention.sdpa_input == "expanded" or (masked and attention.n_kv_heads < attention.n_heads)
    cast_live = (q + k + v) * lo if lo != c else 0
    if expanded:
        k, v = q, out
    sliced = attention.fused_qkv and attention.position == "rope" and not expanded and lo == c
    value = q + k + v if sliced else max(v, attention.value_product_width) if lo == c else v
    kept: Number = c * (q + k + value + out) + 4 * attention.n_heads
    # Backward: gradients of q, k, v and out, an fp32 accumulator for dq and the row sums.
    backward = stream + c * (2 * out + q + k + v) + 4 * q + 4 * attention.n_heads
    converted = masked and (view.stack.sdpa_mask == "bool" or regime.outside != c)
    return Step("attention", kept, stream + cast_live, backward, pair_saves=c if converted else 0)


def _unfused_step(view: BlockView, stream: Number) -> Step:
    """SDPA with one key and value head that it has to broadcast: no fused kernel takes that, and the unfused form runs in fp32.

    Kept: fp32 query, expanded key and value (4 bytes each; of one sample nothing is copied to expand them), and the fp32
    softmax, 4 bytes per head, token and key.
    Backward: gradients of the softmax and of the scores; the expanded value has gone by then, and its gradient is summed up at
    once.
    Those of query and key come when the first of the two has gone.  Ignored: sequences shorter than twice a head's width, where
    these two are the larger.
    Source: torch 2.13 aten/src/ATen/native/transformers/sdp_utils_cpp.h check_batch_size_and_num_heads_dense, attention.cpp
    _scaled_dot_product_attention_math; seen with models/falcon/modeling_falcon.py of transformers 5.23.
    """
    attention = view.block.attention
    expanded = attention.k_width + attention.v_width if view.single else attention.q_width + attention.out_width
    return Step(
        "attention",
        saves=4 * (attention.q_width + expanded),
        forward=stream,
        backward=stream - (0 if view.single else 4 * attention.out_width),
        pair_saves=4 * attention.n_heads,
        pair_forward=4 * attention.n_heads,
        pair_backward=8 * attention.n_heads,
    )


def _eager_step(view: BlockView, stream: Number) -> Step:
    """Attention written out: scores, softmax and its cast are full ``heads x tokens x keys`` tensors.

    Backward is fullest when the softmax has its own: the product with the values has gone by then, and of features per token the
    value's gradient stands in the room of the value.  Ignored: sequences shorter than a head's width, where the gradients of
    output and value together are more than those of the scores.
    Source: transformers 5.23 models/llama/modeling_llama.py eager_attention_forward, models/gptj, models/falcon, models/gemma2.
    """
    attention, regime = view.block.attention, view.regime
    c, heads = regime.compute, attention.n_heads
    operand = 4 if attention.eager_scores == "fp32" and not regime.autocast else c
    # Query, expanded key and expanded value; the product with the values is kept by the output projection if that needs it.
    expanded = 2 * operand * attention.q_width + c * attention.out_width
    if view.single and attention.fused_qkv and attention.position == "rope" and regime.linear_out == c:
        # Of one sample the product takes the value where it lies, and so keeps all of the product that it is a part of.
        expanded += c * (attention.q_width + attention.k_width)
    saves, forward, backward = score_bytes(view)
    heads_bytes = _heads_bytes(view)
    # The value's copy for the product comes when the softmax is there: in the room of the scores, unless these are held on to.
    holds = attention.eager_scores != "compute" and attention.returned_scores != "none"
    copied = c * attention.out_width
    return Step(
        "attention",
        saves=expanded,
        forward=stream + heads_bytes + (copied if holds else -copied),
        plain=stream + heads_bytes + (2 * copied if holds else 0),
        backward=stream,
        pair_saves=heads * saves,
        pair_forward=heads * (forward - saves),
        pair_backward=heads * (backward - saves),
    )


def _heads_bytes(view: BlockView) -> int:
    """Bytes per token of queries, keys and values that variables hold while attention is written out, beside products' copies.

    Counted: what the projections returned (all of it where they are one), turned queries and keys, the copies that some code
    makes of the three, and keys and values repeated for all heads.
    Source: transformers 5.23 models/llama/modeling_llama.py eager_attention_forward, repeat_kv; models/bloom, models/falcon;
    torch 2.13 ATen/native/LinearAlgebra.cpp matmul (copies what does not lie in batches).
    """
    attention, regime = view.block.attention, view.regime
    lo, c = regime.linear_out, regime.compute
    turned = max(lo, regime.residual) if attention.position == "rope" else lo
    product = (attention.q_width + attention.k_width + attention.v_width) * lo if attention.fused_qkv else 0
    held = (attention.q_width + attention.k_width) * turned + attention.v_width * lo
    if attention.fused_qkv and (view.single or not attention.copies_heads):
        # Values, and queries and keys that are not turned, are parts of the product.
        held = (attention.q_width + attention.k_width) * turned if attention.position == "rope" else 0
    if attention.n_kv_heads < attention.n_heads:
        # In the dtype of the product the repeated ones are the copies themselves.
        held += (attention.q_width * turned if turned != c else 0) + (attention.out_width * lo if lo != c else 0)
    return product + held


def score_bytes(view: BlockView) -> tuple[int, int, int]:
    """(kept, most in forward, most in backward) bytes per head, token and key of attention that is written out.

    Kept: the fp32 softmax (4) and, unless products are fp32, its 16-bit cast for the product with the values (2).  Autocast runs
    every softmax without a stated dtype in fp32.  A soft cap keeps the capped score as well, dropout a one-byte mask.
    Forward: the masked score in the wider of its own and the mask's dtype, its fp32 copy (none of fp16), and the softmax; code
    that adds a position bias holds on to the raw score too.  Backward: the softmax, its gradient and the gradient of the scores,
    all fp32 but for that of fp16 scores.
    With sinks the softmax runs in the scores' dtype, and the gradient of the subtracted maximum is two more tensors of it.
    Source: transformers 5.23 eager_attention_forward of models/{llama,gpt2,gpt_oss,gemma2}, models/{bloom,falcon,mpt}; torch
    2.13 ATen/autocast_mode.h (fp32_set_opt_dtype), derivatives.yaml ``_softmax``, ``max.dim``.
    """
    attention, regime = view.block.attention, view.regime
    c = regime.compute
    # The mask has the dtype of the embeddings and widens the scores that it is added to.
    masked = 4 if attention.eager_scores == "fp32_biased" else max(c, regime.residual)
    if attention.sinks:
        recast = c if masked > c else 0
        return masked + recast, 3 * masked + (recast if regime.linear_out < masked else 0), 3 * masked
    cast = c if c < 4 else 0
    capped = c if attention.softcap else 0
    dropped = 1 + (c - cast) if attention.dropout else 0
    fused = softmax_reads_half(view)
    if attention.eager_scores == "compute" and not regime.autocast:
        # No cast stands in for what dropout returns, which the product with the values keeps.
        dropped = 1 + c if attention.dropout else 0
        return c + capped + dropped, 2 * c + capped + dropped, 3 * c + capped + dropped
    holds = attention.eager_scores != "fp32_biased" and attention.returned_scores != "none"
    held = c if holds or attention.eager_scores == "compute" else 0
    # The cast comes when the scores have gone where it is the product's own: the softmax has the query's dtype, fp32.
    late = attention.returned_scores == "softmax" or (attention.returned_scores == "none" and _query_bytes(view) == 4)
    copied = 8 if masked < 4 and not fused else 4 + (0 if late else cast)
    return 4 + cast + capped + dropped, masked + copied + held + capped + dropped, (10 if fused else 12) + capped + dropped


def softmax_reads_half(view: BlockView) -> bool:
    """Whether the fp32 softmax of written-out attention reads fp16 scores as they are, and returns their gradient in fp16.

    CUDA has such a kernel for fp16 alone: bf16 scores are copied to fp32 first.
    Source: torch 2.13 ATen/native/SoftMax.cpp softmax and cuda/SoftMax.cu host_softmax (``half_to_float``).
    """
    attention, regime = view.block.attention, view.regime
    reads = attention.eager_scores == "fp32_softmax" or (attention.eager_scores == "compute" and regime.autocast)
    fp16 = view.recipe.numerics.compute_dtype == "fp16" and regime.compute == 2
    return reads and fp16 and regime.residual < 4 and not attention.sinks


def _query_bytes(view: BlockView) -> int:
    """Bytes per element of the query, to whose dtype written-out attention casts its softmax.

    Rotary tables have the dtype of the embeddings and widen what they turn.
    Source: transformers 5.23 models/llama/modeling_llama.py LlamaRotaryEmbedding.forward, eager_attention_forward.
    """
    regime, attention = view.regime, view.block.attention
    return max(regime.linear_out, regime.residual if attention.position == "rope" else 0)


def returned_score_bytes(view: BlockView) -> int:
    """Bytes per token and key of the probabilities that a layer returns though nobody asked for them.

    Source: transformers 5.23 models/falcon/modeling_falcon.py FalconAttention.forward, models/bloom/modeling_bloom.py, and
    ``outputs`` in their loops over layers.
    """
    attention, regime = view.block.attention, view.regime
    if attention.returned_scores == "none" or view.recipe.attention != "eager":
        return 0
    widened = attention.returned_scores == "softmax" and regime.autocast
    return attention.n_heads * (4 if widened else max(regime.compute, regime.linear_out))
