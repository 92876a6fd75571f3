"""Eager attention: scores of every pair of tokens are tensors,
once for each step of the code.

Source: transformers 5.23 models/*/modeling_*.py ``eager_attention_forward`` and the attention classes that
have none; torch 2.13 ``ATen/native/LinearAlgebra.cpp`` (``matmul``) and ``SoftMax.cpp``.
"""

from __future__ import annotations

from planner.program.ops.autograd import record
from planner.program.ops.kernels import repeat_kv
from planner.program.ops.operators import Operators, part_of
from planner.program.ops.tensors import Dtype, Tensor, Unit, promoted
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast, dropout

Written = tuple[Tensor, list[Tensor]]
"""What attention gives to its output projection,
and what variables of its class refer to until that has run.
"""


def eager(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Written:
    """Attention as the model's own code writes it; its probabilities go into ``torch.returned``, too."""
    spec = view.block.attention
    written = {"fp32": _gptj, "fp32_biased": _mpt, "compute": _llama, "fp32_softmax": _llama}[
        spec.eager_scores
    ]
    if spec.sinks:
        written = _gpt_oss
    elif spec.softcap and view.stack.soft_caps == "stream":
        written = _torchtune
    elif spec.returned_scores == "softmax":
        written = _falcon_alibi if spec.position == "alibi" else _falcon
    elif spec.returned_scores == "cast" and spec.eager_scores == "fp32_softmax":
        written = _bloom
    return written(torch, view, query, key, value)


def _llama(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Written:
    """Most models; a soft cap divides, takes ``tanh`` and multiplies; autocast makes an unstated dtype fp32.

    Source: models/{llama,gemma2,gpt2}/modeling_*.py eager_attention_forward.
    """
    keys, values = repeated(torch, view, key), repeated(torch, view, value)
    scores = torch.same(product(torch, view, query, keys), "mul")
    if view.block.attention.softcap:
        scores = torch.same(scores, "div")
        scores = torch.kernel(scores, "tanh", saves="output")
        scores = torch.same(scores, "mul")
    if view.block.attention.pieces == "none":
        scores = torch.add(scores, _mask(view))
    if view.block.attention.position_bias:
        # Cast, and added in place: BTLMAttention._attn of modeling_btlm.py.
        _bias = torch.new(Unit.LENGTH_PAIRS, view.block.attention.n_heads, scores.dtype, "type_as")
        del _bias
    if view.block.attention.eager_scores == "fp32_softmax":
        # One expression, so that the scores go with the cast.
        scores = torch.to(softmax(torch, scores, "fp32"), query.dtype)
    else:
        scores = softmax(torch, scores, _unstated(view, scores))
        scores = torch.to(scores, query.dtype)
    scores = _dropped(torch, view, scores)
    return _rows(torch, view, _heads(torch, view, scores, values)), []


def _torchtune(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Written:
    """Gemma 2 of torchtune: the query is scaled in place, and a mask of its own, in fp32, widens the scores.

    Source: torchtune 0.6.1 models/gemma2/_attention.py Gemma2Attention.forward.
    """
    keys, values = repeated(torch, view, key), repeated(torch, view, value)
    query = torch.in_place(query, "mul")
    scores = product(torch, view, query, keys)
    mask, *_variables = _own_mask(torch, view)
    scores = torch.same(scores, "div")
    scores = torch.kernel(scores, "tanh", saves="output")
    scores = torch.same(scores, "mul")
    scores = torch.add(scores, mask)
    scores = torch.to(softmax(torch, scores, "fp32"), query.dtype)
    return _rows(torch, view, _heads(torch, view, scores, values)), [mask, *_variables]


def _own_mask(torch: Operators, view: LayerView) -> list[Tensor]:
    """Which pairs are seen, as numbers; where there is a window, ones and those of the window stay beside."""

    def made(op: str, dtype: Dtype = "fp32") -> Tensor:
        return torch.new(Unit.LENGTH_PAIRS, 1, dtype, op)

    seen = made("to", "bool")
    seen = made("tril", "bool")
    unseen = made("logical_not", "bool")
    mask = made("where")
    del seen, unseen
    if view.block.attention.window_tokens is None:
        return [mask]
    ones = made("ones_like")
    above, below = made("triu"), made("tril")
    window = made("mul")
    del above, below
    _compared = made("eq", "bool")
    return [made("where"), ones, window]


def _gpt_oss(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Written:
    """A learned score for each head, the sink, joins those of the keys; the largest is subtracted from all.

    Source: models/gpt_oss/modeling_gpt_oss.py eager_attention_forward.
    """
    keys, values = repeated(torch, view, key), repeated(torch, view, value)
    scores = torch.same(product(torch, view, query, keys), "mul")
    scores = torch.add(scores, _mask(view))
    sinks = torch.parameter(Unit.ONE, scores.count, view.dtypes.table, trained=view.trains_base)
    joined = _joined(torch, scores, sinks)
    joined = torch.sub(joined, _largest(torch, joined))
    probabilities = torch.softmax(joined)
    kept = torch.part(probabilities, scores.count, by_heads=False, unit=Unit.PAIRS)
    scores = torch.to(_dropped(torch, view, kept), values.dtype)
    return _rows(torch, view, _heads(torch, view, scores, values)), []


def _gptj(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Written:
    """Query and key are cast to fp32, which autocast undoes in the product.

    Source: models/gptj/modeling_gptj.py GPTJAttention.forward, _attn.
    """
    query, key = torch.to(query, "fp32"), torch.to(key, "fp32")
    scores = torch.same(product(torch, view, query, key), "div")
    scores = torch.add(scores, _mask(view))
    scores = softmax(torch, scores, _unstated(view, scores))
    scores = torch.to(scores, value.dtype)
    scores = _dropped(torch, view, scores)
    heads = [_heads(torch, view, scores, value)]
    del query, key, scores
    return _rows(torch, view, heads.pop()), []


def _mpt(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Written:
    """An fp32 position bias is added, and a mask filled in.

    Source: models/mpt/modeling_mpt.py MptAttention.forward, build_mpt_alibi_tensor.
    """
    scores = torch.same(product(torch, view, query, key), "mul")
    scores = torch.add(scores, Tensor(None, Unit.PAIRS, 1, "fp32"))
    scores = torch.same(scores, "masked_fill")
    weights = torch.to(softmax(torch, torch.to(scores, "fp32"), "fp32"), value.dtype)
    weights = _dropped(torch, view, weights)
    return _rows(torch, view, _heads(torch, view, weights, value)), [scores]


def _bloom(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Written:
    """The product adds the position bias; raw and masked scores keep variables of their own.

    Source: models/bloom/modeling_bloom.py BloomAttention.forward.
    """
    query = batches(torch, view, query)
    key = batches(torch, view, key)
    value = batches(torch, view, value)
    # A number for each key and head, in the dtype that a norm over the embeddings makes.
    dtype = "fp32" if view.dtypes.autocast else view.dtypes.table
    bias = Tensor(None, Unit.TOKENS, view.block.attention.n_heads, dtype)
    raw = product(torch, view, query, key, bias=bias)
    masked = torch.add(raw, _mask(view))
    weights = torch.to(softmax(torch, masked, "fp32"), query.dtype)
    weights = _dropped(torch, view, weights)
    return _rows(torch, view, _heads(torch, view, weights, value)), [query, key, value, raw, masked]


def _falcon(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Written:
    """Scores are divided in place; the softmax takes the dtype of the layer's input.

    Source: models/falcon/modeling_falcon.py FalconAttention.forward, without ``alibi``.
    """
    scores = torch.in_place(product(torch, view, query, key), "div")
    scores = softmax(torch, torch.add(scores, _mask(view)), _unstated(view, value))
    return _rows(torch, view, _heads(torch, view, scores, value)), []


def _falcon_alibi(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Written:
    """With a position bias: the product, its fp32 copy and the biased scores keep variables of their own.

    Source: models/falcon/modeling_falcon.py FalconAttention.forward, with ``alibi``.
    """
    raw = product(torch, view, query, key)
    scores = torch.to(raw, "fp32")
    biased = torch.in_place(torch.add(scores, Tensor(None, Unit.PAIRS, 1, view.dtypes.table)), "mul")
    weights = softmax(torch, torch.add(biased, _mask(view)), _unstated(view, value))
    weights = _dropped(torch, view, weights)
    return _rows(torch, view, _heads(torch, view, weights, value)), [raw, scores, biased]


def softmax(torch: Operators, x: Tensor, dtype: Dtype) -> Tensor:
    """``softmax(x, dtype=dtype)``: a copy in that dtype first, but fp16 is read, and gets fp16 gradients.

    Source: torch 2.13 ATen/native/SoftMax.cpp softmax (``half_to_float``), cuda/SoftMax.cu host_softmax.
    """
    reads_fp16 = (x.dtype, dtype) == ("fp16", "fp32")
    return torch.softmax(x if reads_fp16 else torch.to(x, dtype), dtype)


def repeated(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``repeat_kv``: a copy of keys or values for all heads; a single head is seen as many without a copy."""
    spec = view.block.attention
    shared = spec.n_heads // spec.n_kv_heads
    if shared == 1:
        return x
    if spec.n_kv_heads == 1:
        return _broadcast(torch, x, shared * x.count)
    return repeat_kv(torch, x, shared, by_heads=False)


def _broadcast(torch: Operators, x: Tensor, count: float) -> Tensor:
    """``expand``: the same memory seen as ``count`` elements; the gradient is summed up."""
    if x.count == count:
        return x
    out = x.alias()
    out.count, out.is_view, out.head_by_head = count, True, False
    return record(torch, out, [x], [], lambda _, gradient: [gradient])


def batches(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``reshape`` to one batch of matrices: a copy of heads whose rows lie together."""
    if _is_batch(view) or x.head_by_head or x.unit is Unit.PAIRS:
        return x
    return torch.contiguous(x, by_heads=True)


def product(
    torch: Operators, view: LayerView, left: Tensor, right: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """``matmul`` of queries and keys, or of probabilities and values; ``bias``: ``baddbmm`` adds it.

    Casts live until it is done.  Keys or values of one head are seen as many.
    """
    spec = view.block.attention
    gives_scores = left.unit is not Unit.PAIRS
    # C++ evaluates arguments from the last one to the first.
    cast_right = autocast(torch, view, right)
    if cast_right is not right and spec.n_kv_heads == 1:
        # The cast of one head that is seen as many is a copy of all.
        cast_right.head_by_head = True
    cast_left = autocast(torch, view, left)
    _cast_bias = None if bias is None else autocast(torch, view, bias)
    wide = _broadcast(torch, cast_right, spec.q_width if gives_scores else spec.out_width)
    one, other = batches(torch, view, cast_left), batches(torch, view, wide)
    size = (Unit.PAIRS, spec.n_heads) if gives_scores else (Unit.TOKENS, spec.out_width)
    out = torch.bmm(one, other, size, scaled=bias is not None)
    return out if gives_scores else _unbatched(torch, view, out)


def _is_batch(view: LayerView) -> bool:
    """Whether samples and heads are one dimension however rows lie: one of the two is one."""
    return view.single or view.block.attention.n_heads == 1


def _unbatched(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """Batches seen as samples and heads; their gradient is copied back unless there is one sample."""
    single = _is_batch(view)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [gradient if single or gradient.head_by_head else torch.like(gradient, "clone")]

    return record(torch, x.alias(), [x], [], backward)


def _mask(view: LayerView) -> Tensor:
    """The mask, which all layers share, in the dtype of the embeddings."""
    return Tensor(None, Unit.PAIRS, 1, view.dtypes.table)


def _unstated(view: LayerView, x: Tensor) -> Dtype:
    """The dtype of a softmax that takes that of its input, which autocast makes fp32."""
    return "fp32" if view.dtypes.autocast else x.dtype


def _dropped(torch: Operators, view: LayerView, weights: Tensor) -> Tensor:
    return dropout(torch, weights) if view.block.attention.dropout else weights


def _heads(torch: Operators, view: LayerView, weights: Tensor, value: Tensor) -> Tensor:
    """Values weighted by the probabilities, which attention returns too."""
    heads = product(torch, view, weights, value)
    torch.returned.append(weights.alias())
    return heads


def _rows(torch: Operators, view: LayerView, heads: Tensor) -> Tensor:
    """``transpose(1, 2).contiguous()``: a copy in which the heads of a row lie together."""
    return heads if view.block.attention.n_heads == 1 else torch.contiguous(heads, by_heads=False)


def _joined(torch: Operators, scores: Tensor, sinks: Tensor) -> Tensor:
    """``cat`` of the scores of keys and of one sink for each row; their gradients are views."""
    heads = scores.count
    out = torch.new(Unit.SINK_PAIRS, heads, promoted(scores.dtype, sinks.dtype), "cat", cost=[scores])

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [part_of(gradient, heads, unit) for unit in (Unit.PAIRS, Unit.TOKENS)]

    return record(torch, out, [scores, sinks], [], backward)


def _largest(torch: Operators, x: Tensor) -> Tensor:
    """``x.max(dim=-1, keepdim=True).values``: saves where it stood, and puts its gradient into zeros."""
    unit, heads, dtype = x.unit, x.count, x.dtype
    out = torch.new(Unit.TOKENS, heads, dtype, "max", cost=[x])
    places = torch.new(Unit.TOKENS, heads, "int64", "max", cost=None)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        del gradient
        _zeros = torch.new(unit, heads, dtype, "new_zeros")
        return [torch.new(unit, heads, dtype, "scatter")]

    return record(torch, out, [x], [places], backward)
