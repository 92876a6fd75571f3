"""AQLM matrices: the weight is decoded for each product, in forward and in backward.

Source: aqlm 1.1.6 ``inference.py`` ``_QuantizedMatmul``, ``inference_kernels/cuda_kernel.cpp``
``code1x16_matmat_dequant`` and ``code1x16_matmat_dequant_transposed`` (``code2x8``, ``code1x8`` alike),
``kernel_selector.py``: from 7 tokens on.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import costs_of, rows_of, unpacked
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView


def linear_aqlm(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """A function that keeps its input: product, scales in place, a copy; backward scales the gradient."""
    in_count, stored, costs = x.count, view.recipe.numerics.load_dtype, costs_of(spec, x)
    if spec.bias:
        torch.parameter(Unit.ONE, spec.out_features, stored, trained=False)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        _scaled = torch.like(gradient, "mul")
        _weight = _decoded(torch, view, spec, stored)
        return [torch.new(gradient.unit, in_count, gradient.dtype, "mm", cost=costs.of_x)]

    return record(torch, _forward(torch, view, spec, x), [x], [x], backward)


def _forward(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    _weight = _decoded(torch, view, spec, view.recipe.numerics.load_dtype)
    return torch.like(_multiplied(torch, view, spec, x), "clone")


def _multiplied(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """Autocast casts both factors where it computes in another dtype."""
    seen = view.product_dtype(x.dtype)
    _weight = None if seen == view.recipe.numerics.load_dtype else _decoded(torch, view, spec, seen)
    _input = x if x.dtype == seen else torch.like(x, "to", seen)
    count = spec.out_features * rows_of(spec, x)
    return torch.new(x.unit, count, seen, "linear", cost=costs_of(spec, _input).forward)


def _decoded(torch: Operators, view: LayerView, spec: LinearSpec, dtype: Dtype) -> Tensor:
    """The weight from its codes, and its scales in place."""
    weight = unpacked(torch, view, spec, dtype)
    with torch.counted_as("dequantization"):
        torch.pay([weight], [weight])
    return weight
