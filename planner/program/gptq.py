"""GPTQ matrices of AutoGPTQ's PyTorch path: the weight is unpacked for each product, and autograd keeps it.

Source: auto_gptq 0.5.1 ``nn_modules/qlinear/qlinear_cuda.py`` QuantLinear.forward.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.casts import autocast, rows_of, weight_copy
from planner.program.operators import Operators
from planner.program.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView

_STORED: Dtype = "fp16"
"""Dtype of scales and biases, and so of the weight that they make."""


def linear_gptq(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``matmul(x, weights)`` of an unpacked weight, its result in the dtype of the weight, and the bias added to it."""
    unpacked = _unpacked(torch, spec)
    weights = _scaled(torch, unpacked)
    out = _matmul(torch, view, spec, x, weights)
    out = torch.to(out, weights.dtype)
    if spec.bias:
        out = torch.add(out, torch.parameter(Unit.ONE, spec.out_features, _STORED, trained=False))
    return out


def _unpacked(torch: Operators, spec: LinearSpec) -> Tensor:
    """Every element shifted out of an int32, narrowed, and masked."""
    weight = torch.new(Unit.ONE, spec.in_features * spec.out_features, "int32", "bitwise_right_shift", "dequantization")
    weight = torch.like(weight, "to", "int8")
    return torch.like(weight, "bitwise_and")


def _scaled(torch: Operators, unpacked: Tensor) -> Tensor:
    """``scales[groups] * (weight - zeros[groups])``."""
    _scales = torch.like(unpacked, "index", _STORED)
    _shifted = _less_zeros(torch, unpacked)
    return torch.like(unpacked, "mul", _STORED)


def _less_zeros(torch: Operators, unpacked: Tensor) -> Tensor:
    _zeros = torch.like(unpacked, "index")
    return torch.like(unpacked, "sub")


def _matmul(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, weights: Tensor) -> Tensor:
    weights = weight_copy(torch, view, weights)
    x = autocast(torch, view, x)
    return torch.mm(x, weights, spec.out_features * rows_of(spec, x), to_unit=x.unit)
