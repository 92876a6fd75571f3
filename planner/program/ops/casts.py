"""The casts of autocast: of the inputs of a product, and of its weights.

Source: torch 2.13 ``aten/src/ATen/autocast_mode.cpp`` cached_cast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from planner.anatomy.packing import packed_bytes
from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.operators import Costs, Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView

Base = Callable[[Operators, LayerView, LinearSpec, Tensor], Tensor]
"""The product with a layer's own weight, of a wrapper that adapts it."""


def autocast(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``x`` as a product sees it: autocast casts it, and keeps what it makes of trained fp32 leaves."""
    if not view.dtypes.autocast:
        return x
    if x.dtype != "fp32" or x.node is None or x.node is not torch.leaf:
        return torch.to(x, view.dtypes.compute)
    if x.node not in torch.autocast_cache:
        torch.autocast_cache[x.node] = torch.to(x, view.dtypes.compute)
    return torch.autocast_cache[x.node]


def weight_copy(torch: Operators, view: LayerView, weight: Tensor) -> Tensor:
    """A weight as a product sees it; copies of trained fp32 ones stay until autocast's region ends."""
    dtype, before = view.dtypes.compute, weight.dtype
    if not view.dtypes.autocast or before == dtype:
        return weight
    if weight.node in torch.autocast_cache:
        return torch.autocast_cache[weight.node]
    with torch.counted_as("weight_casts"):
        copy = torch.new(weight.unit, weight.count, dtype, "to", "autocast_copies", cost=[weight])
        copy = record(torch, copy, [weight], [], lambda _, gradient: [torch.like(gradient, "to", before)])
    # A part that is no leaf is cast anew each time.
    is_leaf = torch.grad_enabled or not view.uses_local_parts
    if before == "fp32" and weight.node is not None and is_leaf:
        torch.autocast_cache[weight.node] = copy
    return copy


def linear_function(torch: Operators, view: LayerView) -> Callable[..., Tensor]:
    """``torch.nn.functional.linear``, in whose place DeepSpeed puts a function of its own under ZeRO-3.

    Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py _enable_mem_efficient_linear.
    Ignored: linears outside of matrices, adapters, routers and the head.
    """
    return partial(torch.mm, by_deepspeed=True) if view.recipe.sharding.is_zero3 else torch.mm


def costs_of(spec: LinearSpec, x: Tensor) -> Costs:
    """What the products of ``x`` with a whole matrix of ``spec`` cost."""
    weight = Tensor(None, Unit.ONE, spec.weight_count, x.dtype)
    return Costs(x, weight, (x.unit, rows_of(spec, x) * spec.out_features), spec.copies)


def packed(view: LayerView, elements: float) -> Tensor:
    """A quantised weight as it is stored, without what scales it."""
    return Tensor(None, Unit.ONE, packed_bytes(view.recipe.numerics, elements), "int8")


def unpacked(torch: Operators, view: LayerView, spec: LinearSpec, dtype: Dtype) -> Tensor:
    """A weight that one kernel unpacks for a product."""
    count = spec.in_features * spec.out_features
    with torch.counted_as("dequantization"):
        return torch.new(Unit.ONE, count, dtype, "dequantize", "dequantization", cost=[packed(view, count)])


def rows_of(spec: LinearSpec, x: Tensor) -> float:
    """Rows for each token that a matrix multiplies: one, or those of the experts that a token goes to."""
    return x.count / spec.in_features
