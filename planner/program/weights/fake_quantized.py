"""Products of an input and a weight that are rounded as if quantised, each by separate operators.

Source: torchao 0.14.1 quantization/qat/linear.py FakeQuantizedLinear, Int8DynActInt4WeightQATQuantizer,
quantization/qat/fake_quantizer.py IntxFakeQuantizer, quantization/quant_primitives.py
_quantize_affine_no_dtype_cast, _dequantize_affine_no_dtype_check (0.12 the same; up to 0.11 a function kept a
mask instead); torchtune 0.6.1 modules/peft/lora.py QATLoRALinear, training/quantization.py
swap_lora_linear_with_qat.  Of three values: onebitllms 0.0.4 layers/bitnet.py BitNetLinear,
kernels/weight_quant.py, kernels/activation_quant.py, whose kernels write 16 bits.
Ignored: what finds the scales, a number or two for each group.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.domain.recipes.recipe import Recipe
from planner.program.ops.autograd import record, save
from planner.program.ops.casts import linear_function, rows_of
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.mx_rounded import product_mx

SCALE_BYTES = 4 + 4
"""A scale and a zero, both in fp32, which the module keeps."""


def is_head_rounded(view: LayerView, head: LinearSpec, *, tied: bool) -> bool:
    """Whether the head is: torchtune's is no module where it is tied, and losses of pieces pass it over.

    onebitllms 0.0.4 utils/monkey_patching.py replace_linear_with_bitnet_linear leaves it out.
    """
    separate = (not tied or view.stack.model_code != "own") and view.recipe.numerics.qat != "ternary"
    return separate and view.recipe.loss == "hf" and is_rounded(view.recipe, head, adapted=view.adapted(head))


def is_rounded(recipe: Recipe, spec: LinearSpec, *, adapted: bool) -> bool:
    """Whether this matrix is: beside adapters those that have one, else all that groups divide.

    Source: torchao 0.14.1 quantization/linear_quant_modules.py _check_linear_int4_k.
    """
    numerics = recipe.numerics
    divides = spec.kind == "linear" and numerics.rounds(spec.in_features)
    return numerics.qat != "none" and divides and (adapted or recipe.method == "full")


def linear_rounded(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``FakeQuantizedLinear``."""
    weight = torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=view.trains_base)
    dtype, trained = view.dtypes.base, view.trains_base
    bias = torch.parameter(Unit.ONE, spec.bias_count, dtype, trained=trained) if spec.bias else None
    return rounded_product(torch, view, spec, x, (weight, bias))


def rounded_product(
    torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, own: tuple[Tensor, Tensor | None]
) -> Tensor:
    """The product of ``x`` with a weight and a bias (``own``), the input rounded first."""
    if view.recipe.numerics.qat == "mxfp4":
        return product_mx(torch, spec, x, own)
    if view.recipe.numerics.qat == "ternary":
        return _product_ternary(torch, view, spec, x, own)
    weight, bias = own
    x = _rounded(torch, x, rows_of(spec, x))
    rounded = _grouped if view.stack.qat_weights == "int4" else _rounded
    with torch.counted_as("weight_casts"):
        weight = rounded(torch, weight, weight.count / view.recipe.numerics.qat_group)
    return linear_function(torch, view)(x, weight, spec.out_features * rows_of(spec, x), bias=bias)


def _product_ternary(
    torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, own: tuple[Tensor, Tensor | None]
) -> Tensor:
    """The product of both factors rounded, which is saved; gradients are those of the factors themselves."""
    weight, bias = own
    x = _by_difference(torch, x)
    with torch.counted_as("weight_casts"):
        weight = _by_difference(torch, weight)
    return linear_function(torch, view)(x, weight, spec.out_features * rows_of(spec, x), bias=bias)


def _by_difference(torch: Operators, x: Tensor) -> Tensor:
    """``x + (round(x) - x).detach()``."""
    rounded = torch.like(x, "empty_like")
    difference = torch.like(x, "sub", cost=(rounded,))
    del rounded
    out = torch.like(x, "add", cost=(difference,))
    return record(torch, out, [x], [], lambda _, gradient: [gradient])


def _rounded(torch: Operators, x: Tensor, groups: float) -> Tensor:
    """``x``, divided by scales, rounded, shifted, clamped, and all the way back, in fp32 where scales are.

    ``clamp`` saves its input.  The clamped tensor is a variable until the end.
    """
    scales = Tensor(None, x.unit, groups, "fp32")
    given = x.dtype
    x = _times(torch, x, torch.like(scales, "reciprocal"))
    x = _passed_on(torch, x, "round")
    x = _passed_on(torch, x, "add")
    clamped = _clamped(torch, x)
    del x
    out = _cast(torch, clamped, given)
    out = _passed_on(torch, out, "sub")
    wide = _times(torch, out, scales)
    del out
    return _cast(torch, wide, given)


def _grouped(torch: Operators, x: Tensor, groups: float) -> Tensor:
    """A weight between the largest and the smallest of each group, all in fp32; both have gradients, too.

    Source: torchao 0.17.0 quantization/qat/fake_quantizer.py Int4WeightFakeQuantizer
    ``_bf16_activations_forward``.
    """
    given = x.dtype
    wide = torch.to(x, "fp32")
    highest, lowest = _extreme(torch, wide, groups, "amax"), _extreme(torch, wide, groups, "amin")
    scale = _of_extremes(torch, "div", highest, lowest)
    zero = _of_extremes(torch, "add", lowest, scale)
    x = _divided(torch, torch.sub(wide, lowest), scale)
    x = _clamped(torch, _passed_on(torch, x, "round"))
    x = _passed_on(torch, x, "sub")
    x = torch.add(torch.mul(x, scale), zero)
    return _cast(torch, x, given)


def _extreme(torch: Operators, x: Tensor, groups: float, op: str) -> Tensor:
    """``amax`` or ``amin`` of each group, whose gradient goes where it was found."""
    shape, out = shape_of(x), torch.new(x.unit, groups, x.dtype, op, cost=[x])

    def backward(kept: list[Tensor], _: Tensor) -> list[Tensor | None]:
        found = torch.like(kept[0], "eq", "bool")
        return [torch.like(shape, "mul", cost=(found,))]

    return record(torch, out, [x], save(torch, [x], [x]), backward)


def _of_extremes(torch: Operators, op: str, *given: Tensor) -> Tensor:
    """A number for each group, from two others."""
    out, both = torch.like(given[0], op), range(len(given))
    return record(torch, out, given, [], lambda _, gradient: [torch.like(gradient, op) for _ in both])


def _divided(torch: Operators, x: Tensor, scale: Tensor) -> Tensor:
    """``x / scale``.  C++ keeps what an expression makes until it ends."""
    saved = save(torch, [x, scale], [x, scale])
    out = torch.like(x, "div", cost=(scale,))

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_scale = [torch.like(kept[0], op) for op in ("div", "div", "neg", "mul")].pop()
        return [torch.like(gradient, "div", cost=(kept[1],)), of_scale]

    return record(torch, out, [x, scale], saved, backward)


def _times(torch: Operators, x: Tensor, scales: Tensor) -> Tensor:
    """``x * scales``, which need no gradient, in fp32."""
    saved = save(torch, [x], [scales])
    out = torch.like(x, "mul", "fp32", cost=(scales,))
    return record(torch, out, [x], saved, lambda _, gradient: [torch.like(gradient, "mul")])


def _passed_on(torch: Operators, x: Tensor, op: str) -> Tensor:
    return record(torch, torch.like(x, op), [x], [], lambda _, gradient: [gradient])


def _cast(torch: Operators, x: Tensor, dtype: Dtype) -> Tensor:
    """``x.to(dtype, copy=True)``."""
    before = x.dtype
    out = torch.like(x, "to", dtype)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [gradient if gradient.dtype == before else torch.like(gradient, "to", before)]

    return record(torch, out, [x], [], backward)


def _clamped(torch: Operators, x: Tensor) -> Tensor:
    """Backward compares with both bounds, and keeps the gradient where it lay between them.

    Source: torch 2.13 torch/csrc/autograd/FunctionsManual.cpp clamp_backward.
    """
    saved = save(torch, [x], [x])
    shape = shape_of(x)

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        above = torch.like(kept[0], "ge", "bool")
        _below = torch.like(kept[0], "le", "bool")
        torch.pay([above, _below], [above])
        return [torch.like(shape, "where", cost=(above, gradient))]

    return record(torch, torch.like(x, "clamp"), [x], saved, backward)
