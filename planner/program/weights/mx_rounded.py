"""Products of an input and a weight that are packed into 4 bits and expanded again, operator by operator:
MXFP4, with a power of two for each block of 32.

Backward expands what was packed, once more, and multiplies in 16 bits.
Source: torchao 0.17.0 prototype/qat/mx.py _MXQuantizedForwardFakeQuantizedBackward,
prototype/mx_formats/mx_tensor.py to_mx, _to_mx_rceil, to_dtype, prototype/custom_fp_utils.py,
prototype/mx_formats/kernels.py pack_uint4, unpack_uint4.
Ignored: what finds the scales, a number for each block.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import costs_of, rows_of
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Dtype, Tensor

_PACKED = 1 / 2 + 1 / 32
"""Bytes of an element and of its share of a scale."""


def product_mx(torch: Operators, spec: LinearSpec, x: Tensor, own: tuple[Tensor, Tensor | None]) -> Tensor:
    """The product of ``x`` with a weight and a bias (``own``), both factors packed and expanded first."""
    weight, bias = own
    sizes, costs = (shape_of(x), shape_of(weight)), costs_of(spec, x)
    packed = [_packed(torch, each) for each in (x, weight)]
    factors = [_expanded(torch, each) for each in sizes]
    out = torch.new(x.unit, spec.out_features * rows_of(spec, x), x.dtype, "mm", cost=costs.forward)
    del factors
    inputs = [x, weight] if bias is None else [x, weight, bias]
    n_inputs = len(inputs)

    def backward(_: list[Tensor], __: Tensor) -> list[Tensor | None]:
        _factors = [_expanded(torch, each) for each in sizes]
        of_x = torch.like(sizes[0], "mm", cost=costs.of_x)
        return [of_x, torch.like(sizes[1], "mm", cost=costs.of_weight), None][:n_inputs]

    return record(torch, out, inputs, packed, backward)


def _packed(torch: Operators, x: Tensor) -> Tensor:
    """``to_mx``: names are those of the functions, whose variables live as long as there."""

    def like(op: str, dtype: Dtype) -> Tensor:
        return torch.like(x, op, dtype)

    _absolute = like("abs", "fp32" if x.dtype == "fp32" else "bf16")
    del _absolute
    _data_hp = like("to", "fp32") if x.dtype != "fp32" else None
    scaled = like("mul", "fp32")
    data_lp = like("clamp", "fp32")
    del scaled
    codes = _codes(torch, x)
    del data_lp
    shifted = torch.new(x.unit, x.count / 2, "int8", "shift", cost=[codes])
    packed = torch.new(x.unit, x.count * _PACKED, "int8", "or", cost=[codes, shifted])
    del shifted
    return packed


def _codes(torch: Operators, x: Tensor) -> Tensor:
    """``f32_to_f4_unpacked``: a byte for each element."""

    def like(op: str, dtype: Dtype) -> Tensor:
        return torch.like(x, op, dtype)

    sign = like("and", "int32")
    positive = like("xor", "int32")
    _masks = [like(op, "bool") for op in ("ge", "logical_and", "logical_not")]
    denormal = like("add", "fp32")
    _denormal = like("to", "int8")
    del denormal
    odd = like("shift", "int32")
    _mant_odd = like("and", "int32")
    del odd
    normal = like("shift", "int32")
    _normal = like("to", "int8")
    del normal
    codes = like("full_like", "int8")
    del positive
    for op in ("where", "where"):
        codes = like(op, "int8")
    shifted = like("shift", "int32")
    del sign
    _sign = like("to", "int8")
    del shifted
    return torch.like(codes, "or")


def _expanded(torch: Operators, x: Tensor) -> Tensor:
    """``to_dtype``."""
    halves = [torch.new(x.unit, x.count / 2, "int8", op, cost=[]) for op in ("and", "shift")]
    _codes = torch.like(x, "stack", "int8")
    del halves
    _wide = _values(torch, x)
    data_hp = torch.like(x, "to")
    return torch.like(data_hp, "mul")


def _values(torch: Operators, x: Tensor) -> Tensor:
    """``f4_unpacked_to_f32``."""

    def like(op: str, dtype: Dtype) -> Tensor:
        return torch.like(x, op, dtype)

    _bytes = [like(op, "int8") for op in ("and", "xor", "eq", "logical_and", "shift")]
    exponents = like("to", "int32")
    _exponents = like("shift", "int32")
    del exponents
    _mantissa = [like(op, "int32") for op in ("to", "shift")]
    _result = like("or", "int32")
    signs = like("to", "int32")
    _signs = like("shift", "int32")
    del signs
    return like("or", "fp32")
