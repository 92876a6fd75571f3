"""OFT before a matrix: blocks of neighbouring inputs are turned,
each by a rotation made of a trained skew-symmetric matrix.

Source: peft 0.21 ``tuners/oft/layer.py`` Linear.forward, OFTRotationModule.forward, _pytorch_skew_symmetric,
_cayley_batch with five terms of Neumann's series (OFTConfig's default); 0.18 ``tuners/oft/bnb.py``,
``gptq.py`` and ``awq.py``; torch 2.13 ``aten/src/ATen/native/Linear.cpp`` sumproduct_pair for the einsum.
Ignored: the index of a triangle while it is written.  ``oft_dropout`` is a module that no forward pass calls.
"""

from __future__ import annotations

from planner.anatomy.adapted_matrices import oft_block_size
from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import Base, autocast
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView


def with_rotation(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, base: Base) -> Tensor:
    """The base's result for ``x`` that was turned, which lives until then; both in the dtype of ``x``."""
    if view.quantized(spec) and view.stack.oft != "alike":
        return _over_packed(torch, view, spec, x, base)
    given = x.dtype
    with torch.counted_as("adapters"):
        x = torch.to(x, view.dtypes.adapter)
        x = _rotated(torch, view, spec, x)
        turned = [torch.to(x, given)]
    return torch.to(base(torch, view, spec, turned.pop()), given)


def _over_packed(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, base: Base) -> Tensor:
    """The same by the wrappers of quantised matrices before PEFT 0.21, which leave the result as it is.

    That of GPTQ refers to the product with ``x`` as it came until it has the other one, before PEFT 0.19.
    """
    given, first = x.dtype, view.stack.oft == "twice" and view.recipe.numerics.quantization == "gptq-int4"
    _before = base(torch, view, spec, x) if first else None
    with torch.counted_as("adapters"):
        if not view.dtypes.autocast:
            x = torch.to(x, view.dtypes.adapter)
        x = _rotated(torch, view, spec, x)
        x = torch.to(x, given)
    return base(torch, view, spec, x)


def _rotated(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``x`` times its rotation, block by block, in rows and the dtype of ``x`` again."""
    adapter, required = view.recipe.adapter, x.dtype
    assert adapter is not None
    size = oft_block_size(spec.in_features, adapter.oft_block_size)
    with torch.inside("oft_R", torch.module):
        weight = torch.parameter(
            Unit.ONE, spec.in_features * (size - 1) / 2, view.dtypes.adapter, trained=True
        )
        x = torch.to(x, weight.dtype)
        rotation = _cayley(torch, view, _skew(torch, weight, spec.in_features * size), size)
        # A view, whose gradient comes block by block and is laid out in rows again.
        blocks = _product(torch, view, torch.moved(x), rotation, size)
        return torch.to(torch.contiguous(blocks), required)


def _skew(torch: Operators, weight: Tensor, count: float) -> Tensor:
    """The weight written into the upper triangles of zeros, less the transpose."""
    shape = shape_of(weight)
    zeros = torch.new(Unit.ONE, count, shape.dtype, "zeros")
    matrix = record(torch, zeros, [weight], [], lambda *_: [torch.like(shape, "index")])
    torch.pay([weight], [weight])
    return torch.sub(matrix, torch.reshaped(matrix))


def _cayley(torch: Operators, view: LayerView, skew: Tensor, size: int) -> Tensor:
    """``I + 2 Q + 2 Q^2 + 2 Q^3 + Q^4``, summed in place; the square lives until the function returns."""
    eye = torch.new(Unit.ONE, size * size, skew.dtype, "eye")
    total = torch.new(Unit.ONE, skew.count, skew.dtype, "repeat")
    del eye
    total = _added(torch, total, skew, doubled=True)
    square = _product(torch, view, skew, skew, size)
    total = _added(torch, total, square, doubled=True)
    power = _product(torch, view, square, skew, size)
    total = _added(torch, total, power, doubled=True)
    power = _product(torch, view, power, skew, size)
    return _added(torch, total, power, doubled=False)


def _product(torch: Operators, view: LayerView, one: Tensor, other: Tensor, size: int) -> Tensor:
    """A batched product of blocks of ``size``, whose operands autocast casts, the last first."""
    cast = autocast(torch, view, other)
    return torch.bmm(autocast(torch, view, one), cast, (one.unit, one.count), inner=size)


def _added(torch: Operators, total: Tensor, power: Tensor, *, doubled: bool) -> Tensor:
    """``total.add_(power, alpha=2)``."""
    torch.pay([total, power], [total])

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [gradient, torch.like(gradient, "mul") if doubled else gradient]

    return record(torch, total.alias(), [total, power], [], backward)
