"""Experts as one function of Liger's, which sorts rows while it multiplies them and keeps the first product.

What the experts of a token return is not kept, and is never weighted apart: the gradient goes through the
second matrix, and gives the activated gate anew.  Both gradients of weights are made, trained or not.
Source: liger-kernel 0.8.0 and 0.8.5 ops/fused_moe.py LigerFusedMoEFunction, transformers/swiglu.py
LigerExperts.
Ignored: numbers of experts, rows and tiles, some for each token.
"""

from __future__ import annotations

from dataclasses import replace

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import costs_of
from planner.program.ops.operators import Costs, Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit

# The three kernels of the routing's numbers, the sums of their counts, the cast of the chosen experts, and
# what is filled with zeros.
_SMALL_OPERATORS = 7


def liger_experts(
    torch: Operators,
    x: Tensor,
    weights: Tensor,
    specs: tuple[LinearSpec, LinearSpec],
    parts: tuple[Tensor, Tensor],
) -> Tensor:
    """What the chosen experts return for each token, weighted and summed.

    ``parts``: the tensors of all experts, as they are read.  The host waits for the number of tiles.
    """
    x = torch.reshaped(x)
    top_k, like = weights.count, shape_of(x)
    torch.spend("launches", Unit.ONE, _SMALL_OPERATORS)
    of_first, of_second = (_costs(like, spec, top_k) for spec in specs)
    with torch.in_manner(replace(torch.manner, waits=True)):
        first = torch.like(_rows(like, specs[0], top_k), "up_proj", cost=of_first.forward)
    middle = torch.like(_inputs(like, specs[1], top_k), "swiglu", cost=None)
    second = torch.like(_rows(like, specs[1], top_k), "down_proj", cost=of_second.forward)
    del middle
    out = torch.new(like.unit, like.count, like.dtype, "token_gather", cost=[second, weights])
    del second
    sizes = [shape_of(each) for each in (weights, *parts)]

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        """Its variables live until it returns."""
        dtype = gradient.dtype
        _first = torch.like(_rows(like, specs[0], top_k), "down_proj", dtype, cost=of_second.of_x)
        _middle = torch.like(_inputs(like, specs[1], top_k), "swiglu", dtype, cost=None)
        of_weights = torch.like(sizes[0], "zeros", dtype)
        down = torch.like(sizes[2], "zeros", cost=of_second.of_weight)
        expanded = torch.like(_inputs(like, specs[0], top_k), "up_proj", dtype, cost=of_first.of_x)
        of_x = torch.new(like.unit, like.count, dtype, "zeros", cost=[expanded])
        gate_up = torch.like(sizes[1], "zeros", cost=of_first.of_weight)
        return [of_x, gate_up, down, of_weights]

    return record(torch, out, [x, *parts, weights], [x, *parts, first, weights], backward)


def _rows(like: Tensor, spec: LinearSpec, top_k: float) -> Tensor:
    """The shape of what a matrix returns for each of the experts of a token."""
    return Tensor(None, like.unit, top_k * spec.out_features, like.dtype)


def _inputs(like: Tensor, spec: LinearSpec, top_k: float) -> Tensor:
    return Tensor(None, like.unit, top_k * spec.in_features, like.dtype)


def _costs(like: Tensor, spec: LinearSpec, top_k: float) -> Costs:
    return costs_of(spec, _inputs(like, spec, top_k))
