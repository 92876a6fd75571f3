"""GPTQ matrices: the weight is unpacked for each product, which keeps it.

Source: auto_gptq 0.5.1 and 0.7.1 ``nn_modules/qlinear/qlinear_cuda.py`` QuantLinear.forward, which unpacks by
operators; gptqmodel 7.3.4 ``nn_modules/qlinear/torch.py`` TorchLinear ``_forward_eager``, which
TritonV2Linear is in training, and which torch.compile makes one kernel of.
Ignored: gptqmodel where torch.compile does not work; unpacked zeros of gptqmodel,
at most an element for each scale.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.casts import autocast, packed, rows_of, unpacked, weight_copy
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView

_STORED: Dtype = "fp16"
"""Dtype of scales and biases, and so of the weight that they make."""


# Zeros are shifted, narrowed, masked and added to as weights are, and the index of groups widened twice: too
# small for memory.  Source: auto_gptq 0.5.1 nn_modules/qlinear/qlinear_cuda.py forward.
_SMALL_OPERATORS = 6


def linear_gptq(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """The product with the unpacked weight, as the package computes it that the stack loads GPTQ with."""
    if view.stack.packed_kernels == "gptqmodel":
        return _by_one_kernel(torch, view, spec, x)
    return _by_operators(torch, view, spec, x)


def _by_operators(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``matmul(x, weights)`` of an unpacked weight, its result in the weight's dtype, and the bias."""
    with torch.counted_as("dequantization"):
        narrow = _shifted(torch, view, spec)
        weights = _scaled(torch, narrow)
    out = _matmul(torch, view, spec, x, weights)
    return _biased(torch, spec, torch.to(out, weights.dtype))


def _biased(torch: Operators, spec: LinearSpec, out: Tensor) -> Tensor:
    if not spec.bias:
        return out
    return torch.add(out, torch.parameter(Unit.ONE, spec.out_features, _STORED, trained=False))


def _shifted(torch: Operators, view: LayerView, spec: LinearSpec) -> Tensor:
    """Every element shifted out of an int32, narrowed, and masked."""
    narrow: Dtype = "int16" if view.recipe.numerics.quantization == "gptq-int8" else "int8"
    count = spec.in_features * spec.out_features
    torch.call("launches", _SMALL_OPERATORS)
    weight = torch.new(
        Unit.ONE, count, "int32", "bitwise_right_shift", "dequantization", cost=[packed(view, count)]
    )
    weight = torch.like(weight, "to", narrow)
    return torch.like(weight, "bitwise_and")


def _scaled(torch: Operators, weight: Tensor) -> Tensor:
    """``scales[groups] * (weight - zeros[groups])``."""
    scales = torch.like(weight, "index", _STORED)
    zeros = torch.like(weight, "index")
    shifted = torch.like(weight, "sub", cost=(zeros,))
    del zeros
    return torch.like(shifted, "mul", _STORED, cost=(scales,))


def _matmul(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, weights: Tensor) -> Tensor:
    weights = weight_copy(torch, view, weights)
    x = autocast(torch, view, x)
    return torch.mm(x, weights, spec.out_features * rows_of(spec, x))


def _by_one_kernel(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``matmul(x, weights.to(x.dtype))``; the bias is added in place."""
    out = _matmul(torch, view, spec, x, _dequantized(torch, view, spec, x.dtype))
    if spec.bias:
        torch.parameter(Unit.ONE, spec.out_features, _STORED, trained=False)
    return out


def _dequantized(torch: Operators, view: LayerView, spec: LinearSpec, dtype: Dtype) -> Tensor:
    """The weight unpacked by one kernel, and cast."""
    weight = unpacked(torch, view, spec, _STORED)
    with torch.counted_as("dequantization"):
        return torch.to(weight, dtype)
