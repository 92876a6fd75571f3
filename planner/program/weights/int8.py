"""LLM.int8() matrices of bitsandbytes: the input quantised by rows, an int8 product,
and outlier columns beside it.

Source: bitsandbytes 0.50 ``autograd/_functions.py`` MatMul8bitLt, ``backends/cuda/ops.py``,
``backends/default/ops.py``; 0.41.3 ``autograd/_functions.py`` where the input is quantised by columns too.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast, costs_of, rows_of, unpacked
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.ops.work import Manner, Multiplies
from planner.program.view import LayerView

_OPERATORS = 30
"""Operators of a forward pass, between which the host waits to know which columns hold outliers: statistics,
quantise, index and zero these columns, gather and dequantise their weights, product, scale, second product,
add.

Source: bitsandbytes 0.41 and 0.50 autograd/_functions.py.
"""
_OUTLIER_SHARE = 1000
"""One input column in so many holds an outlier.  Source: arXiv 2208.07339, section 4 (about 0.1 %)."""


def linear_int8(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``MatMul8bitLt``: its input stays an attribute of the context, with what it took from it."""
    given = x.dtype
    in_count, costs = x.count, costs_of(spec, x)
    by_columns = view.stack.int8_keeps_quantized_input
    # Its own rate holds all that is done beside the product, and many of its operators allocate nothing.
    with torch.in_manner(Manner("int8", calls=0)):
        torch.spend("launches", Unit.ONE, _OPERATORS)
        torch.spend("waits", Unit.ONE, _OPERATORS)
        out, kept = (_forward_by_columns if by_columns else _forward)(torch, view, spec, x)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        if by_columns:
            # Quantised both ways, which nothing reads where the weight is frozen.
            _unread = _quantized_both_ways(torch, gradient)
        _weight = _expanded(torch, view, spec, given)
        _seen = torch.to(gradient, given)
        of_x = torch.new(gradient.unit, in_count, given, "mm", cost=costs.of_x)
        of_x.is_view = True
        return [of_x]

    return record(torch, out, [x], [], backward, context=[*kept, x])


def _columns(spec: LinearSpec) -> int:
    return -(-spec.in_features // _OUTLIER_SHARE)


def _expanded(torch: Operators, view: LayerView, spec: LinearSpec, dtype: Dtype) -> Tensor:
    """The weight in ``dtype``, times ``SCB * (1 / 127)``: one fp32 number for each output feature."""
    weight = unpacked(torch, view, spec, dtype)
    with torch.counted_as("dequantization"):
        _scales = torch.new(Unit.ONE, spec.out_features, "fp32", "mul")
        torch.pay([weight], [weight])
    return weight


def _forward(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The product, and the outlier columns of the input."""
    rows = _quantized_rows(torch, spec, torch.to(x, "fp16"))
    outliers = _outliers(torch, spec, x)
    _stored, _wide, part = _outlier_weights(torch, spec, x)
    out = _int8_product(torch, spec, x, rows)
    return _with_outliers(torch, view, out, outliers, part), [outliers]


def _outliers(torch: Operators, spec: LinearSpec, x: Tensor) -> Tensor:
    """The columns of the input that stay in 16 bits."""
    count = _columns(spec) * rows_of(spec, x)
    return torch.new(x.unit, count, x.dtype, "index", cost=[Tensor(None, x.unit, count, x.dtype)])


def _int8_cost(spec: LinearSpec, x: Tensor) -> Multiplies:
    return costs_of(spec, Tensor(None, x.unit, x.count, "int8")).forward


def _quantized_rows(torch: Operators, spec: LinearSpec, half: Tensor) -> Tensor:
    """``int8_vectorwise_quant``: int8 rows, and a mask of what is above the threshold, reduced to columns."""
    rows = torch.like(half, "int8_vectorwise_quant", "int8")
    _mask = _above(torch, half)
    _any = torch.new(Unit.ONE, spec.in_features, "bool", "any", cost=[_mask])
    return rows


def _above(torch: Operators, half: Tensor) -> Tensor:
    """``half.abs() >= threshold``."""
    _absolute = torch.like(half, "abs")
    return torch.like(half, "ge", "bool")


def _outlier_weights(torch: Operators, spec: LinearSpec, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of the outlier columns: as stored, widened, and cast to the dtype of the input."""
    part = torch.new(Unit.ONE, _columns(spec) * spec.out_features, "int8", "index")
    wide = torch.like(part, "mul", "fp32")
    wide = torch.like(wide, "mul")
    return part, wide, torch.to(wide, x.dtype)


def _int8_product(torch: Operators, spec: LinearSpec, x: Tensor, rows: Tensor) -> Tensor:
    """``int8_scaled_mm``: an int32 product, scaled into fp16, then cast to the dtype of the input."""
    del rows
    count, cost = spec.out_features * rows_of(spec, x), _int8_cost(spec, x)
    product = torch.new(x.unit, count, "int32", "int8_linear_matmul", cost=cost)
    half = torch.like(product, "int8_mm_dequant", "fp16")
    return torch.to(half, x.dtype)


def _with_outliers(torch: Operators, view: LayerView, out: Tensor, outliers: Tensor, part: Tensor) -> Tensor:
    """``out.addmm(outliers, part)``, whose three arguments autocast casts from the last to the first."""
    part, outliers = autocast(torch, view, part), autocast(torch, view, outliers)
    out = autocast(torch, view, out)
    return torch.like(out, "addmm")


def _forward_by_columns(
    torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Versions that quantise by columns too, and keep that; they add the part of the outliers in place.

    Ignored: outlier weights (``state.subB``) stay until the next forward: counted with the weights.
    """
    rows, columns = _quantized_both_ways(torch, x)
    _weights = _outlier_weights(torch, spec, x)
    outliers = _outliers(torch, spec, x)
    _moved = torch.like(rows, "transform")
    count, seen = spec.out_features * rows_of(spec, x), view.product_dtype(x.dtype)
    product = torch.new(x.unit, count, "int32", "igemmlt", cost=_int8_cost(spec, x))
    out = torch.to(torch.like(product, "mm_dequant", "fp16"), x.dtype)
    added = torch.new(x.unit, count, seen, "mm", cost=[outliers])
    torch.pay([out, added], [out])
    del added
    return torch.like(out, "clone"), [columns, outliers]


def _quantized_both_ways(torch: Operators, x: Tensor) -> tuple[Tensor, Tensor]:
    """``double_quant``: int8 by rows and by columns."""
    half = torch.to(x, "fp16")
    return torch.like(half, "double_quant", "int8"), torch.like(half, "double_quant", "int8")
