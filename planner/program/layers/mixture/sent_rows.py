"""Experts that Transformers divides over GPUs: rows are sent to the GPU that has their expert, and what it
returns is sent back and weighted.  As many rows are taken to arrive as are sent: tokens spread evenly.

Source: transformers 5.23 distributed/expert_parallel.py AllToAllEP, integrations/moe.py
``grouped_mm_experts_forward`` (``_is_expert_parallel``, one expert for each row); torch 2.13
distributed/_functional_collectives.py all_to_all_single_autograd.
Ignored: some numbers for each row, such as whose expert it is for.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.program.ops.autograd import record, save
from planner.program.ops.operators import Operators, row_numbers, shape_of
from planner.program.ops.tensors import EXCHANGED_ROWS, Dtype, Tensor
from planner.program.view import LayerView

Compute = Callable[[Tensor], Tensor]


def sent_to_experts(
    torch: Operators, view: LayerView, x: Tensor, weights: Tensor, compute: Compute
) -> Tensor:
    """What the experts of all GPUs return for each token; ``compute``: what those of this GPU return for
    rows.
    """
    hidden, given = x.count, x.dtype
    sent = torch.index(x, view.block.mlp.top_k * hidden)
    arrived = exchanged(torch, sent)
    del sent
    returned = compute(arrived)
    back = exchanged(torch, returned)
    placed = in_places(torch, back, Tensor(None, back.unit, back.count, back.dtype), "empty_like")
    weighted = torch.mul(placed, weights)
    summed = sum_of_experts(torch, view, weighted, hidden)
    # Variables of the call refer to what arrived until it returns.
    del arrived, returned, back, placed, weighted
    return torch.to(summed, given)


def exchanged(torch: Operators, x: Tensor) -> Tensor:
    """Rows that other GPUs sent, as many as this one sends; so do their gradients."""

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(gradient, EXCHANGED_ROWS, cost=None)]

    return record(torch, torch.like(x, EXCHANGED_ROWS, cost=None), [x], [], backward)


def in_places(torch: Operators, x: Tensor, size: Tensor, op: str) -> Tensor:
    """Rows of ``x`` written to their places in a tensor of ``size`` that ``op`` makes."""
    unit, count, dtype = x.unit, x.count, x.dtype
    whole = torch.new(size.unit, size.count, size.dtype, op)
    torch.pay([x], [x])
    saved = save(torch, [x], [row_numbers()])

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        rows = Tensor(None, unit, count, dtype)
        return [torch.new(unit, count, gradient.dtype, "index", cost=[rows])]

    return record(torch, whole, [x], saved, backward)


def masked_rows(torch: Operators, x: Tensor) -> Tensor:
    """``masked_fill`` of rows for experts of other GPUs, of which none has arrived."""
    return torch.same(x, "masked_fill")


def masked_in_place(torch: Operators, x: Tensor) -> Tensor:
    """``masked_fill_``, whose gradient is a new tensor."""
    return record(torch, x.alias(), [x], [], lambda _, gradient: [torch.like(gradient, "masked_fill")])


def sum_of_experts(torch: Operators, view: LayerView, x: Tensor, count: float) -> Tensor:
    """The rows of each token summed, in fp32 under autocast; the gradient is repeated for each row."""
    dtype: Dtype = "fp32" if view.dtypes.autocast else x.dtype
    rows = shape_of(x)
    out = torch.new(x.unit, count, dtype, "sum", cost=[x])
    return record(torch, out, [x], [], lambda *_: [torch.new(rows.unit, rows.count, rows.dtype, "clone")])
