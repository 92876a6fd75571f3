"""Products of trained matrices in 8-bit floats: both operands are cast anew for each of the three products.

Source: torchao 0.18.0 float8/float8_linear.py matmul_with_hp_or_float8_args, float8_training_tensor.py
_ToFloat8ConstrFunc, float8_utils.py tensor_to_amax and to_fp8_saturated, float8_ops.py preprocess_addmm and
addmm_float8_unwrapped, config.py from_recipe_name; all of it run on fake tensors.
Accelerate 1.15 utils/ao.py convert_model_to_fp8_ao leaves the head as it is.
Ignored: that it leaves the first matrix of the model, too; scales of rows.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.domain.recipes.fp8 import GATHERED_FP8, MULTIPLE
from planner.domain.recipes.recipe import Numerics
from planner.program.ops.autograd import record, save
from planner.program.ops.casts import autocast, costs_of, rows_of
from planner.program.ops.operators import Costs, Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView


def in_float8(numerics: Numerics, spec: LinearSpec) -> bool:
    """Whether products of this matrix of a layer are in 8 bits: sides are multiples of 16 elements.

    Source: accelerate 1.15 utils/ao.py filter_linear_layers; torchtitan e347b1e
    components/quantization/utils.py module_filter_fn.  ``Conv1D`` is no ``nn.Linear``.
    """
    sides = spec.in_features % MULTIPLE or spec.out_features % MULTIPLE
    return numerics.fp8 != "none" and spec.kind != "conv1d" and not sides


def linear_float8(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``Float8Linear``: saves its input and its weight as they are, and casts both for each product."""
    x = autocast(torch, view, x)
    weight = torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=True)
    saved = save(torch, [x, weight], [x, weight])
    given = shape_of(x)
    out = _product(torch, view, spec, x, weight)

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return _gradients(torch, view, costs_of(spec, _narrow(given)), kept, gradient)

    out = record(torch, out, [x, weight], saved, backward)
    if not spec.bias:
        return out
    bias = torch.parameter(Unit.ONE, spec.bias_count, view.dtypes.base, trained=True)
    return torch.add(out, torch.to(bias, out.dtype))


def _narrow(x: Tensor) -> Tensor:
    return Tensor(None, x.unit, x.count, "fp8")


def _product(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, weight: Tensor) -> Tensor:
    """The forward product, whose rows a kernel scales by itself."""
    _rows = _cast(torch, view, x)
    _matrix = _cast_weight(torch, view, weight)
    count = spec.out_features * rows_of(spec, x)
    return torch.new(x.unit, count, x.dtype, "mm", cost=costs_of(spec, _narrow(x)).forward)


def _gradients(
    torch: Operators, view: LayerView, costs: Costs, kept: list[Tensor], gradient: Tensor
) -> list[Tensor | None]:
    """That of the input first, then that of the weight; what was cast for the first lives until the end."""
    x, weight = kept
    by_rows = view.recipe.numerics.fp8.startswith("rowwise")
    rows = _cast(torch, view, gradient)
    matrix = _cast_weight(torch, view, weight)
    turned = torch.like(matrix, "contiguous")
    scale = _unscaled(torch, view, shape_of(x)) if by_rows else None
    of_x = torch.new(x.unit, x.count, gradient.dtype, "mm", cost=costs.of_x)
    of_x.is_view = not torch.flat
    del turned, scale
    if view.recipe.numerics.fp8 == "rowwise-gw-hp":
        wide = Costs(shape_of(x), shape_of(weight), (gradient.unit, gradient.count))
        of_weight = torch.new(weight.unit, weight.count, x.dtype, "mm", cost=wide.of_weight)
    else:
        again = rows if _compiled(view) and not by_rows else _cast(torch, view, gradient)
        narrow = _cast(torch, view, x)
        _turned = torch.like(again, "contiguous"), torch.like(narrow, "contiguous")
        _scale = _unscaled(torch, view, shape_of(weight)) if by_rows else None
        of_weight = torch.new(weight.unit, weight.count, x.dtype, "mm", cost=costs.of_weight)
    of_weight.is_view = True
    return [of_x, of_weight]


def _unscaled(torch: Operators, view: LayerView, result: Tensor) -> Tensor | None:
    """Scales of rows times scales of columns, which multiply a product that was made without fast sums."""
    if _compiled(view):
        torch.pay([result], [result])
        return None
    return torch.like(result, "mul", "fp32")


def _compiled(view: LayerView) -> bool:
    return view.stack.fp8_linears == "compiled"


def _cast_weight(torch: Operators, view: LayerView, weight: Tensor) -> Tensor:
    """The weight in 8 bits: as it was gathered, or cast."""
    if view.recipe.numerics.fp8 == GATHERED_FP8:
        return _narrow(weight)
    with torch.counted_as("weight_casts"):
        return _cast(torch, view, weight)


def _cast(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``hp_tensor_to_float8_dynamic``: the largest, then scaled, clamped and cast; compiled, two kernels."""
    x = shape_of(x)
    if _compiled(view):
        torch.pay([x])
        return torch.like(x, "to", "fp8")
    absolute = torch.like(x, "abs")
    torch.pay([absolute])
    del absolute
    wide = torch.to(x, "fp32")
    scaled = torch.like(wide, "mul")
    del wide
    _clamped = torch.like(scaled, "clamp")
    return torch.like(_clamped, "to", "fp8")
