"""What attention keeps for backward: fused kernels, torch's unfused form, and attention written out in Python."""

from __future__ import annotations

from planner.anatomy.ledger import BlockView, Step
from planner.anatomy.norms import norm_amounts
from planner.domain.model import AttentionSpec
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
    norms = [norm for norm in view.block.norms if norm.on in ("heads", "latent")]
    if not norms:
        return []
    amounts = [(norm.copies, norm_amounts(view, norm, view.regime.linear_out)) for norm in norms]
    return [
        Step(
            "head_norms",
            saves=sum(copies * amount.saves for copies, amount in amounts),
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
    value = q + k + v if sliced else v
    kept: Number = c * (q + k + value + out) + 4 * attention.n_heads
    # Backward: gradients of q, k, v and out, an fp32 accumulator for dq and the row sums.
    backward = stream + c * (2 * out + q + k + v) + 4 * q + 4 * attention.n_heads
    converted = masked and (view.stack.sdpa_mask == "bool" or regime.outside != c)
    return Step("attention", kept, stream + cast_live, backward, pair_saves=c if converted else 0)


def _unfused_step(view: BlockView, stream: Number) -> Step:
    """SDPA with one key and value head that it has to broadcast: no fused kernel takes that, and the unfused form runs in fp32.

    Kept: fp32 query, expanded key and value (4 bytes each), and the fp32 softmax, 4 bytes per head, token and key.
    Source: torch 2.13 aten/src/ATen/native/transformers/sdp_utils_cpp.h check_batch_size_and_num_heads_dense, attention.cpp
    _scaled_dot_product_attention_math; seen with models/falcon/modeling_falcon.py of transformers 5.23.
    """
    attention = view.block.attention
    wide = 4 * (2 * attention.q_width + attention.out_width)
    return Step(
        "attention",
        saves=wide,
        forward=stream,
        backward=stream + wide + 4 * attention.out_width,
        pair_saves=4 * attention.n_heads,
        pair_forward=4 * attention.n_heads,
        pair_backward=8 * attention.n_heads,
    )


def _eager_step(view: BlockView, stream: Number) -> Step:
    """Attention written out: scores, softmax and its cast are full ``heads x tokens x keys`` tensors.

    Kept per score: the fp32 softmax (4) and, unless compute is fp32, its 16-bit cast for the product with the values (2); only
    the latter where the code keeps to ``compute``; the capped score as well under a soft cap.  While it runs: the masked scores;
    backward: the gradient in both dtypes, together 4 above what is kept, 6 when the stream is fp32 and the scores with it.
    Source: transformers 5.23 models/llama/modeling_llama.py eager_attention_forward, models/gptj, models/falcon, models/gemma2.
    """
    attention, regime = view.block.attention, view.regime
    c, heads = regime.compute, attention.n_heads
    score_bytes = 4 if regime.norm_out == 4 or c == 4 else c
    operand = 4 if attention.eager_scores == "fp32" else c
    # Query, expanded key and expanded value; the product with the values is kept by the output projection if that needs it.
    expanded = 2 * operand * attention.q_width + c * attention.out_width
    return Step(
        "attention",
        saves=expanded,
        forward=stream,
        backward=stream + c * (2 * attention.out_width + 2 * attention.q_width),
        pair_saves=heads * _bytes_per_score(attention, c),
        pair_forward=heads * score_bytes,
        pair_backward=heads * (score_bytes + 2),
    )


def _bytes_per_score(attention: AttentionSpec, compute: int) -> int:
    capped = compute if attention.softcap else 0
    if attention.eager_scores == "compute":
        return compute + capped
    return 4 + (compute if compute < 4 else 0) + capped
