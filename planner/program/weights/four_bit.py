"""4-bit matrices of bitsandbytes, which expand their weight for each product.

Source: bitsandbytes 0.50 ``nn/modules.py`` Linear4bit, ``autograd/_functions.py`` MatMul4Bit,
``functional.py`` dequantize_4bit; 0.41.3 where the input is kept.
Ignored: up to 1,536 tokens some cards multiply without expanding in forward (0.50 ``backends/cuda/ops.py``
gemm_4bit).
"""

from __future__ import annotations

from planner.anatomy.packing import packed_bytes
from planner.domain.model import LinearSpec
from planner.domain.recipes.recipe import BITSANDBYTES
from planner.program.ops.autograd import record
from planner.program.ops.casts import costs_of, packed, rows_of
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import ELEMENT_BYTES, Dtype, InGraph, Tensor, Unit
from planner.program.ops.work import Unpacking
from planner.program.view import LayerView

_SCALED = 64
"""Elements of a 4-bit weight that share one scale.  Source: bitsandbytes 0.50 functional.quantize_4bit."""


def linear_4bit(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """The input in the compute dtype, the product, and its result in the dtype of the input.

    Ignored: a bias, which the first pass turns to that dtype for good.
    """
    given = x.dtype
    compute = "fp16" if view.stack.linear4bit_dtype == "fp16" else view.recipe.numerics.compute_dtype
    x = torch.to(x, compute)
    return torch.to(product_4bit(torch, view, spec, x), given)


def packed_parameter(torch: Operators, view: LayerView, spec: LinearSpec, owner: str = "") -> None:
    """A matrix as it is stored, where that is a parameter: of bitsandbytes, or where others say its dtype;
    and the bias beside it.

    ``owner``: the module inside the running one that has it.
    """
    numerics = view.recipe.numerics
    if numerics.quantization not in BITSANDBYTES and numerics.quant_storage is None:
        return
    stored = numerics.quant_storage or "int8"
    count = packed_bytes(numerics, elements(view, spec)) / ELEMENT_BYTES[stored]
    # ``ctx.tensors`` has ``B``, a view (bitsandbytes 0.50.2 autograd/_functions.py MatMul4Bit).
    bound: InGraph = "bound" if numerics.quantization in ("nf4", "fp4") else ""
    torch.parameter(Unit.ONE, count, stored, trained=False, owner=owner, in_graph=bound)
    if spec.bias and numerics.quantization in BITSANDBYTES:
        torch.parameter(Unit.ONE, spec.bias_count, view.dtypes.base, trained=False, owner=owner)


def product_4bit(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``MatMul4Bit``: expands the weight again in backward; older ones keep their input for nothing."""
    out = _product(torch, view, spec, x)
    in_count, costs = x.count, costs_of(spec, x)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        _weight = dequantized(torch, view, spec, gradient.dtype)
        return [torch.new(gradient.unit, in_count, gradient.dtype, "mm", cost=costs.of_x)]

    return record(torch, out, [x], [], backward, context=[x] if view.stack.linear4bit_keeps_input else [])


def _product(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    _weight = expanded(torch, view, spec, x.dtype)
    op, count = "addmm" if spec.bias else "mm", spec.out_features * rows_of(spec, x)
    return torch.new(x.unit, count, x.dtype, op, cost=costs_of(spec, x).forward)


def expanded(torch: Operators, view: LayerView, spec: LinearSpec, dtype: Dtype) -> Tensor:
    """A weight for a forward product: straight into ``dtype``, or into the stack's buffer, which stays.

    Doubly quantised scales are widened, and the offset is added into another tensor.  Versions that keep
    their input expand as in backward.
    """
    if view.stack.keeps_expanded_weight and not _is_stacked(view, spec):
        weight = Tensor(None, Unit.ONE, elements(view, spec), dtype)
        _pay(torch, view, spec, weight)
        return weight
    if view.stack.linear4bit_keeps_input:
        return dequantized(torch, view, spec, dtype)
    with torch.counted_as("dequantization"):
        scales = _scales(torch, view, spec)
        if scales is not None:
            scales = torch.like(scales, "add")
    return _from_packed(torch, view, spec, dtype)


def dequantized(torch: Operators, view: LayerView, spec: LinearSpec, dtype: Dtype) -> Tensor:
    """``dequantize_4bit(...).to(dtype)``: a weight in the dtype that was quantised, then cast."""
    weight = loaded(torch, view, spec)
    with torch.counted_as("dequantization"):
        return torch.to(weight, dtype)


def loaded(torch: Operators, view: LayerView, spec: LinearSpec) -> Tensor:
    """``dequantize_4bit(...)``: a weight in the dtype that was quantised."""
    with torch.counted_as("dequantization"):
        _held = _scales(torch, view, spec)
    packed_from: Dtype = "fp16" if view.stack.quantizer == "lightning" else view.recipe.numerics.load_dtype
    return _from_packed(torch, view, spec, packed_from)


def _from_packed(torch: Operators, view: LayerView, spec: LinearSpec, dtype: Dtype) -> Tensor:
    """The weight as one kernel unpacks it."""
    weight = torch.new(Unit.ONE, elements(view, spec), dtype, "dequantize", "dequantization", cost=None)
    _pay(torch, view, spec, weight)
    return weight


def _pay(torch: Operators, view: LayerView, spec: LinearSpec, weight: Tensor) -> None:
    """One kernel for each matrix; of experts apart the memory of one stands for all."""
    moved = (packed(view, weight.count).count + weight.count * ELEMENT_BYTES[weight.dtype]) / weight.count
    with torch.counted_as("dequantization"):
        torch.pay([])
        torch.spend(Unpacking(moved), Unit.ONE, spec.weight_count)


def _scales(torch: Operators, view: LayerView, spec: LinearSpec) -> Tensor | None:
    """The fp32 scales of a weight whose scales are quantised too."""
    if not view.recipe.numerics.double_quant:
        return None
    return torch.new(Unit.ONE, -(-elements(view, spec) // _SCALED), "fp32", "dequantize", "dequantization")


def elements(view: LayerView, spec: LinearSpec) -> int:
    """Elements that one product expands: a matrix, or the tensor of all experts of a layer.

    Source: unsloth_zoo 2026.10.9 temporary_patches/moe_utils_bnb4bit.py.
    """
    return spec.weight_count if _is_stacked(view, spec) else spec.in_features * spec.out_features


def _is_stacked(view: LayerView, spec: LinearSpec) -> bool:
    """Whether the experts of a layer are one tensor."""
    return spec.kind == "parameter" and view.stack.fused_experts
