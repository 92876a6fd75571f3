"""Attention over a divided sequence whose keys and values are gathered one head at a time.

Each GPU has its part of the tokens.  While the kernel works on one head of keys, the next one arrives; the
outputs of all heads are joined at the end.  Backward, the gradients of each head of keys are summed over the
GPUs before the next.

Source: ring-flash-attn 0.1.8 llama3_flash_attn_varlen.py, which axolotl 0.19.0
monkeypatch/ring_attn/patch.py calls with ``heads_k_stride`` 1 (``varlen_llama3``).
Ignored: GPUs with earlier parts, which see fewer keys and wait for the last one; borders of packed samples.
"""

from __future__ import annotations

from dataclasses import replace

from planner.program.ops.autograd import record
from planner.program.ops.collectives import SCATTERED_KEYS, SENT_KEYS
from planner.program.ops.kernels import BACKWARD_PRODUCTS, PRODUCTS, flash_workspace, fused_cost
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.ops.work import Multiplies
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast

_PAIR = 2
"""Keys and values, which are sent together."""


def by_gathered_heads(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What the queries of this GPU's tokens read from the whole sequence, rows of all heads together.

    Keys and values are saved as rows of tokens, a copy where heads followed one another.
    """
    value, key, query = (autocast(torch, view, each) for each in (value, key, query))
    kept = [_in_rows(torch, each) for each in (key, value)]
    out, statistics = _forward(torch, view, query)
    shapes = [shape_of(each) for each in (query, *kept)]

    def backward(*_: object) -> list[Tensor | None]:
        return _backward(torch, view, shapes)

    return record(torch, out, [query, key, value], [query, *kept, out, statistics], backward)


def _forward(torch: Operators, view: LayerView, query: Tensor) -> tuple[Tensor, Tensor]:
    spec = view.block.attention
    together, op = spec.n_heads // spec.n_kv_heads, "flash_attention"
    _buffers = [_whole_head(torch, view, query) for _ in range(2)]
    _first = _sent(torch, view, query, SENT_KEYS)
    outs: list[Tensor] = []
    sums: list[Tensor] = []
    sending: list[Tensor] = []
    for head in range(spec.n_kv_heads):
        if head < spec.n_kv_heads - 1:
            sending = _sent(torch, view, query, "clone")
        cost = _cost(view, together, PRODUCTS)
        outs.append(torch.new(Unit.TOKENS, together * spec.head_dim, query.dtype, op, cost=cost))
        sums.append(torch.new(Unit.TOKENS, together, "fp32", op, cost=None))
    del sending
    joined = torch.new(Unit.TOKENS, spec.n_heads * spec.head_dim, query.dtype, "cat", cost=outs)
    return joined, torch.new(Unit.TOKENS, spec.n_heads, "fp32", "cat", cost=sums)


def _backward(torch: Operators, view: LayerView, shapes: list[Tensor]) -> list[Tensor | None]:
    """Two heads of keys on their way, the gradients of one of the whole sequence, and of this GPU's part."""
    spec, op = view.block.attention, "flash_attention_backward"
    together, query = spec.n_heads // spec.n_kv_heads, shapes[0]
    _buffers = [_whole_head(torch, view, query) for _ in range(3)]
    _own = torch.new(Unit.TOKENS, _PAIR * spec.head_dim, query.dtype, op, cost=None)
    gradients: list[Tensor | None] = [torch.like(shape, op, cost=None) for shape in shapes]
    _first = _sent(torch, view, query, SCATTERED_KEYS)
    sending: list[Tensor] = []
    for head in range(spec.n_kv_heads):
        if head < spec.n_kv_heads - 1:
            sending = _sent(torch, view, query, SCATTERED_KEYS)
        torch.pay(_cost(view, together, BACKWARD_PRODUCTS))
        _work = flash_workspace(torch, spec.head_dim, (Unit.TOKENS, together), op)
        if together > 1:
            n_keys = view.recipe.parallel.context * together * spec.head_dim
            _work += [torch.new(Unit.TOKENS, n_keys, query.dtype, op, cost=None) for _ in range(2)]
        del _work
    del sending
    return gradients


def _whole_head(torch: Operators, view: LayerView, like: Tensor) -> Tensor:
    """One head of keys and of values, of all tokens."""
    count = _PAIR * view.recipe.parallel.context * view.block.attention.head_dim
    return torch.new(Unit.TOKENS, count, like.dtype, "empty", cost=None)


def _sent(torch: Operators, view: LayerView, like: Tensor, op: str) -> list[Tensor]:
    """One head of this GPU's keys and one of its values, copied to be sent."""
    part = Tensor(None, Unit.TOKENS, view.block.attention.head_dim, like.dtype)
    return [torch.new(part.unit, part.count, part.dtype, op, cost=[part]) for _ in range(_PAIR)]


def _in_rows(torch: Operators, x: Tensor) -> Tensor:
    """``x`` itself where rows of all heads lie together, else a copy, which has no gradient of its own."""
    if not x.head_by_head:
        return x
    rows = torch.like(x, "clone")
    rows.head_by_head = False
    return rows


def _cost(view: LayerView, heads: int, products: int) -> Multiplies:
    """``heads`` of queries of the last part of a sequence of ``n``: each sees the parts before it
    and half of its own, ``2 - 1 / n`` times what queries see on average.
    """
    whole = fused_cost(view, "flash", products)
    share = heads / view.block.attention.n_heads
    return replace(whole, macs=whole.macs * share * (2 - 1 / view.recipe.parallel.context))
