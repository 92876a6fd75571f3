"""Attention over a divided sequence by torch's ring, which Accelerate's ``cp_size`` has.

Each GPU has two pieces of the sequence.  It gathers the keys and values of all GPUs once, and meets those of
one GPU after the other: the kernel runs, and outputs are merged in fp32.  Backward, the gradients of keys and
values travel from GPU to GPU in fp32.

Source: torch 2.13 distributed/tensor/experimental/_context_parallel/_attention.py
_templated_ring_attention, _SDPAMerger, _templated_ring_attention_backward; accelerate 1.15 accelerator.py
_prepare_cp (``allgather``).
Described is the last GPU but one.  Those before it meet its kinds of steps in another number; the very last
one keeps one tensor less, because none of its outputs is joined of two halves.
"""

from __future__ import annotations

from dataclasses import replace

from planner.program.ops.autograd import record
from planner.program.ops.collectives import GATHERED_KEYS, PASSED_ON
from planner.program.ops.kernels import BACKWARD_PRODUCTS, PRODUCTS, flash_workspace, fused_cost
from planner.program.ops.operators import Operators, part_of, shape_of
from planner.program.ops.tensors import Dtype, Tensor
from planner.program.ops.work import Multiplies
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast

_FORWARD, _BACKWARD = "flash_attention", "flash_attention_backward"


def by_ring(torch: Operators, view: LayerView, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What the queries of this GPU's tokens read from the whole sequence, rows of all heads together."""
    value, key, query = (autocast(torch, view, each) for each in (value, key, query))
    out, statistics = _kept(torch, view, query, key)
    shapes = [shape_of(each) for each in (query, key, value)]

    def backward(*_: object) -> list[Tensor | None]:
        return _backward(torch, view, shapes)

    out = record(torch, out, [query, key, value], [query, key, value, statistics, out], backward)
    # ``transpose(1, 2).contiguous()``: halves were joined head by head.
    return torch.contiguous(out, by_heads=False)


def _kept(torch: Operators, view: LayerView, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The same, which a selective checkpoint sees as one operator on tensors that know of all GPUs.

    Source: torch 2.13 utils/checkpoint.py _CachingTorchDispatchMode, a mode, whose turn is before DTensor's.
    """
    keeps = torch.keeps
    if keeps is None or not torch.grad_enabled:
        return _forward(torch, view, query, key)
    made: list[Tensor] = []

    def make() -> Tensor:
        if not made:
            torch.keeps = None
            made.extend(_forward(torch, view, query, key))
            torch.keeps = keeps
        return made.pop(0)

    return keeps(_FORWARD, make), keeps(_FORWARD, make)


def _forward(torch: Operators, view: LayerView, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The output of all steps and its logarithms of sums."""
    parts = view.recipe.parallel.context
    own = [torch.like(key, "clone") for _ in range(2)]
    sent = _joined(torch, key, key.dtype)
    everything = torch.new(key.unit, parts * sent.count, key.dtype, GATHERED_KEYS, cost=None)
    del sent
    out, sums = _called(torch, view, query)
    merged = [torch.like(out, "to", "fp32"), sums]
    for step in range(1, parts):
        is_last = step == parts - 1
        if not is_last:
            _again = _joined(torch, key, key.dtype)  # gathered already, so it is not sent
            del _again
        own.clear()
        out, sums = _called(torch, view, half(query) if is_last else query)
        _merge(torch, merged, out, sums)
    result = torch.like(merged[0], "to", query.dtype)
    del everything
    return result, merged[1]


def _called(torch: Operators, view: LayerView, query: Tensor) -> tuple[Tensor, Tensor]:
    """Output and logarithms of sums of one step."""
    out = torch.like(query, _FORWARD, cost=cost_of_step(view, PRODUCTS))
    return out, torch.new(
        query.unit, query.count / view.block.attention.head_dim, "fp32", _FORWARD, cost=None
    )


def _merge(torch: Operators, merged: list[Tensor], out: Tensor, sums: Tensor) -> None:
    """``merged``, output and sums so far, weighed against those of one step, which may be of one half."""
    is_half = out.count < merged[0].count
    wide = torch.like(out, "to", "fp32")
    difference = torch.like(sums, "sub")
    weight = torch.like(sums, "sigmoid")
    del difference
    difference = torch.like(wide, "sub", cost=(wide,))
    product = torch.like(wide, "mul", cost=(weight,))
    del weight, difference
    result = torch.like(wide, "sub", cost=(product,))
    del product
    result_sums = _logarithms(torch, sums)
    if is_half:
        merged[1] = torch.like(merged[1], "cat")
        joined = torch.like(merged[0], "cat")
        joined.head_by_head = True
        merged[0] = joined
    else:
        merged[:] = [result, result_sums]


def _logarithms(torch: Operators, sums: Tensor) -> Tensor:
    """``sums - logsigmoid(...)``, which has a buffer beside its result."""
    difference = torch.like(sums, "sub")
    made = [torch.like(sums, "log_sigmoid") for _ in range(2)]
    made.pop()
    del difference
    return torch.like(sums, "sub")


def _backward(torch: Operators, view: LayerView, shapes: list[Tensor]) -> list[Tensor | None]:
    """Gradients of query, key and value; those of keys and values come back as views of one tensor."""
    query, key, value = shapes
    parts = view.recipe.parallel.context
    of_query = torch.like(query, "zeros_like", "fp32")
    of_keys = [torch.like(key, "zeros_like", "fp32") for _ in range(2)]
    own = [torch.like(key, "clone") for _ in range(2)]
    sent = _joined(torch, key, key.dtype)
    everything = torch.new(key.unit, parts * sent.count, key.dtype, GATHERED_KEYS, cost=None)
    made = gradients_of_step(torch, view, query, key)
    # Zeros lie as the keys do, whose heads do not follow one another.
    flat = [torch.like(each, "flatten") for each in of_keys]
    passed = _joined(torch, key, "fp32")
    flat.clear()
    received = torch.like(passed, PASSED_ON, cost=None)
    for step in range(1, parts):
        is_last = step == parts - 1
        sent = sent if is_last else _joined(torch, key, key.dtype)
        _sums = torch.new(query.unit, view.block.attention.n_heads / 2, "fp32", "clone") if is_last else None
        own.clear()
        of_step = (half(query), key) if is_last else (query, half(key))
        made = gradients_of_step(torch, view, *of_step)
        del passed
        of_keys.clear()
        # Those of half of the keys are added to a copy, those of all in place.
        of_keys += [received] if is_last else [torch.like(key, "cat", "fp32") for _ in range(2)]
        passed = _joined(torch, key, "fp32")
        received = torch.like(passed, PASSED_ON, cost=None)
        of_query = torch.like(of_query, "cat") if is_last else of_query
    of_query = torch.like(of_query, "to", query.dtype)
    whole = torch.like(received, "to", key.dtype)
    del passed, received, sent, made, everything
    return [of_query, part_of(whole, key.count), part_of(whole, value.count)]


def _joined(torch: Operators, key: Tensor, dtype: Dtype) -> Tensor:
    """One tensor of keys and values, which is sent."""
    return torch.new(key.unit, 2 * key.count, dtype, "cat", cost=[key, key])


def half(x: Tensor) -> Tensor:
    """The shape of half of its tokens."""
    return replace(shape_of(x), count=x.count / 2)


def gradients_of_step(torch: Operators, view: LayerView, query: Tensor, key: Tensor) -> list[Tensor]:
    """What the kernel makes of the queries and the keys of one step, and its workspace meanwhile."""
    spec = view.block.attention
    torch.pay(cost_of_step(view, BACKWARD_PRODUCTS))
    seen = query.count / (spec.n_heads * spec.head_dim)
    _work = flash_workspace(torch, spec.head_dim, (query.unit, seen * spec.n_heads), _BACKWARD)
    if spec.n_kv_heads < spec.n_heads:
        count = key.count * spec.n_heads / spec.n_kv_heads
        _work += [torch.new(key.unit, count, key.dtype, _BACKWARD, cost=None) for _ in range(2)]
    return [torch.like(each, _BACKWARD, cost=None) for each in (query, key, key)]


def cost_of_step(view: LayerView, products: int) -> Multiplies:
    """One of as many steps as there are GPUs, of equal work: pieces from both ends of the sequence are dealt
    out, and what no query may see is left out.
    """
    whole = fused_cost(view, "flash", products)
    return replace(whole, macs=whole.macs / view.recipe.parallel.context)
