"""Matrices that a checkpoint stores in 8-bit floats: the product casts its input, and backward makes the
weight anew in the dtype of the gradient.  Experts lie in one tensor, of which backward makes up to 1 GiB at a
time.

Source: transformers 5.23 ``integrations/finegrained_fp8.py`` FP8LinearFunction, FP8GroupedMatmulFunction,
_dequantize_fp8_weight, fp8_linear, fp8_grouped_mm_experts_forward, and ``deepgemm.py``
deepgemm_fp8_fp4_linear; the Hub's kernels-community/deep-gemm ``utils/math.py`` per_token_cast_to_fp8, and
kernels-community/finegrained-fp8 ``matmul.py``, ``grouped.py`` and ``utils.py`` fp8_act_quant_block_dynamic.
Ignored: versions of the last that cast inside of the product; what Triton holds while it tunes a kernel, at
the first product of each size; scales that DeepGEMM lays out anew.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import costs_of, packed, rows_of
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import ELEMENT_BYTES, Tensor, Unit
from planner.program.view import LayerView
from planner.units import GIB

_DEEPGEMM_SIDE = 128
AT_ONCE_BYTES = GIB
"""Of experts that backward makes anew at once.  Source: ``FP8GroupedMatmulFunction.dequant_budget_bytes``."""


def linear_fine_grained(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """A function that keeps the weight alone; its result has the dtype of the input."""
    in_count, costs = x.count, costs_of(spec, x)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        _weight = _widened(torch, view, spec.weight_count, gradient)
        return [torch.new(gradient.unit, in_count, gradient.dtype, "mm", cost=costs.of_x)]

    return record(torch, _forward(torch, view, spec, x), [x], [], backward)


def experts_fine_grained(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """The same of all experts, whose kernel is never DeepGEMM's here."""
    in_count, costs, n_experts = x.count, costs_of(spec, x), spec.copies

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        count = spec.in_features * spec.out_features
        at_once = max(1, int(AT_ONCE_BYTES / (count * ELEMENT_BYTES[gradient.dtype])))
        if at_once >= n_experts:
            _weight = _widened(torch, view, spec.weight_count, gradient)
            return [torch.new(gradient.unit, in_count, gradient.dtype, "mm", cost=costs.of_x)]
        of_x = torch.new(gradient.unit, in_count, gradient.dtype, "zeros", cost=costs.of_x)
        for begin in range(0, n_experts, at_once):
            n = min(at_once, n_experts - begin)
            _weight = _widened(torch, view, n * count, gradient)
            _part = torch.new(gradient.unit, in_count * n / n_experts, gradient.dtype, "mm")
            del _weight, _part
        return [of_x]

    _narrow, _scales = _cast_by_kernel(torch, x, view.recipe.numerics.packing.group or spec.in_features)
    count = spec.out_features * rows_of(spec, x)
    out = torch.new(x.unit, count, x.dtype, "fp8_matmul", cost=costs.forward)
    return record(torch, out, [x], [], backward)


def _widened(torch: Operators, view: LayerView, count: float, gradient: Tensor) -> Tensor:
    """The weight cast, and scaled in place by scales that are repeated over rows."""
    side, dtype = view.recipe.numerics.packing.group, gradient.dtype
    with torch.counted_as("dequantization"):
        n_scales = count / side**2 if side else 1
        scales = torch.new(Unit.ONE, n_scales, dtype, "to", "dequantization")
        weight = torch.new(Unit.ONE, count, dtype, "dequantize", "dequantization", cost=[packed(view, count)])
        if side:
            scales = torch.new(Unit.ONE, side * n_scales, dtype, "repeat_interleave", "dequantization")
        torch.pay([weight, scales], [weight])
    return weight


def _forward(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """The product, to which the bias is added in place."""
    side, count = view.recipe.numerics.packing.group, spec.out_features * rows_of(spec, x)
    by_deepgemm = view.has_deepgemm and side == _DEEPGEMM_SIDE and x.dtype != "fp32"
    cast = _cast_by_operators if by_deepgemm else _cast_by_kernel
    narrow, _scales = cast(torch, x, side or spec.in_features)
    # DeepGEMM alone is known to be as fast as products of 8-bit floats are.
    forward = costs_of(spec, narrow if by_deepgemm else x).forward
    out = torch.new(x.unit, count, x.dtype, "fp8_matmul", cost=forward)
    if spec.bias:
        torch.parameter(Unit.ONE, spec.out_features, x.dtype, trained=False)
        torch.pay([out], [out])
    return out


def _cast_by_kernel(torch: Operators, x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    narrow = torch.new(x.unit, x.count, "fp8", "quantize", cost=[x])
    return narrow, torch.new(x.unit, x.count / group, "fp32", "scales")


def _cast_by_operators(torch: Operators, x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """A copy that is a multiple of 128 wide, the largest of each group, and the cast."""
    padded = torch.new(x.unit, x.count, x.dtype, "empty", cost=[x])
    passed = [torch.like(padded, "abs")]
    passed.append(torch.like(passed.pop(), "to", "fp32"))
    passed.append(torch.new(x.unit, x.count / group, "fp32", "amax", cost=[passed.pop()]))
    passed.append(torch.like(passed.pop(), "clamp"))
    scales = torch.like(passed.pop(), "div")
    passed.append(torch.like(scales, "reciprocal"))
    passed.append(torch.like(passed.pop(), "mul"))
    passed.append(torch.like(padded, "mul", "fp32", cost=[passed.pop()]))
    return torch.like(passed.pop(), "to", "fp8"), scales
