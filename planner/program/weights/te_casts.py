"""Products of Transformer Engine in 8 bits: what is cast, what is kept of it, and for which product.

An operand along rows is read by the forward product and that of the input's gradient, one along columns by
that of the weight's.  A product keeps the columns of its input, and both sides of its weight.
Source: TransformerEngine d0067d0d (2.20.0.dev0) pytorch/module/linear.py _linear_forward_impl:420-640,
_linear_backward:855-1330, module/base.py quantize_weight:792, grad_output_preprocess:1688,
csrc/quantizer.cpp; accelerate 1.15 utils/transformer_engine.py convert_model, apply_fp8_autowrap.
Ignored: scales of whole tensors and their histories, 20 KiB for each matrix; that scales are tensors of their
own; what kernels need to sum a bias's gradient.  Evaluation runs in 16 bits, which is ignored, too.
"""

from __future__ import annotations

from typing import Literal

from planner.domain.model import LinearSpec
from planner.domain.recipes.fp8_scaling import Scaling
from planner.program.ops.autograd import record
from planner.program.ops.casts import costs_of, rows_of
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Dtype, Tensor, Unit
from planner.program.view import LayerView

Sides = Literal["both", "rows", "columns"]


class Cast:
    """A tensor in 8 bits along ``rows`` and along ``columns``: one where products take it both ways."""

    def __init__(self, rows: Tensor | None, columns: Tensor | None) -> None:
        self.rows, self.columns = rows, columns

    def parts(self) -> list[Tensor]:
        """Each tensor once."""
        found = [each for each in (self.rows, self.columns) if each is not None]
        return found[:1] if self.rows is self.columns else found


def cast(torch: Operators, how: Scaling, x: Tensor, sides: Sides = "both", *, weight: bool = False) -> Cast:
    """``quantizer(x)``: one kernel for both sides, after one that finds the largest number where the scale
    of the whole tensor is not known before.
    """
    x = shape_of(x)
    made = empty_cast(torch, how, x, sides, weight=weight)
    if how.by_tensor and not how.delayed:
        torch.pay([x])
    torch.pay([x], made.parts())
    return made


def empty_cast(
    torch: Operators, how: Scaling, x: Tensor, sides: Sides = "both", *, weight: bool = False
) -> Cast:
    """Memory for it."""
    count = x.count * (1 + (0 if weight and how.square else how.scale_bytes))
    if not how.turned:
        both = torch.new(x.unit, count, "fp8", "quantize", cost=None)
        return Cast(both, both)
    rows = None if sides == "columns" else torch.new(x.unit, count, "fp8", "quantize", cost=None)
    return Cast(rows, None if sides == "rows" else torch.new(x.unit, count, "fp8", "quantize", cost=None))


def linear_te(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``te.Linear`` in the place of an ``nn.Linear`` of a layer."""
    trained, dtype = view.trains_base, view.dtypes.base
    weight = torch.parameter(Unit.ONE, spec.weight_count, dtype, trained=trained)
    bias = torch.parameter(Unit.ONE, spec.bias_count, dtype, trained=trained) if spec.bias else None
    return product_te(torch, view, spec, x, [weight, *([] if bias is None else [bias])])


def product_te(
    torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, weights: list[Tensor]
) -> Tensor:
    """Its product; ``weights``: the matrix, and a bias.

    Only the model's forward runs in 8 bits: what a checkpoint computes again in backward is in 16 bits.
    """
    how, dtype = view.narrow, view.dtypes.compute
    assert how is not None
    again, given = torch.direction == "again", shape_of(x)
    seen = shape_of(x)
    seen.dtype = dtype if again else "fp8"
    costs, count = costs_of(spec, seen), spec.out_features * rows_of(spec, x)
    passing: list[Tensor] = []
    if again:
        kept = [_as(torch, x, dtype), _as(torch, weights[0], dtype)]
    else:
        kept, passing = _operands(torch, how, x, weights[0])
    _bias = [_as(torch, each, dtype) for each in weights[1:]]
    out = torch.new(x.unit, count, dtype, "gemm", cost=costs.forward)
    passing.clear()
    x_needs = x.node is not None

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_bias = [torch.new(Unit.ONE, each.count, dtype, "sum", cost=None) for each in weights[1:]]
        _narrow = None if again else cast(torch, how, gradient)
        of_x = torch.new(given.unit, given.count, dtype, "gemm", cost=costs.of_x) if x_needs else None
        of_weight = torch.new(Unit.ONE, weights[0].count, dtype, "gemm", cost=costs.of_weight)
        return [of_x, of_weight, *of_bias]

    return record(torch, out, [x, *weights], kept, backward)


def _operands(torch: Operators, how: Scaling, x: Tensor, weight: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Input and weight in 8 bits: what backward reads, and what is read by the forward product alone."""
    sides: Sides = "both" if torch.grad_enabled else "rows"
    narrow = cast(torch, how, x, sides)
    with torch.counted_as("weight_casts"):
        matrix = cast(torch, how, weight, sides, weight=True)
    kept = [*([] if narrow.columns is None else [narrow.columns]), *matrix.parts()]
    return kept, narrow.parts()


def _as(torch: Operators, x: Tensor, dtype: Dtype) -> Tensor:
    """``cast_if_needed``, whose result the function itself keeps."""
    return x.alias() if x.dtype == dtype else torch.like(shape_of(x), "to", dtype)
