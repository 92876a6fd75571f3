"""xIELU, an activation with two trained numbers, as Python code spells it out.

Source: transformers 5.23 activations.py ``XIELUActivation._xielu_python``, which runs unless the package
``xielu`` is installed; torch 2.13 derivatives.yaml ``where``, ``minimum``, ``expm1``.
"""

from __future__ import annotations

from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView


def xielu(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``where(x > 0, p * x * x + b * x, (expm1(min(x, eps)) - x) * n + b * x)``."""
    positive, negative = _number(torch, view), _number(torch, view)
    choice = torch.like(x, "gt", "bool")
    above = torch.add(torch.mul(torch.mul(positive, x), x), torch.same(x, "mul"))
    below = torch.mul(torch.sub(_expm1(torch, view, _minimum(torch, x)), x), negative)
    below = torch.add(below, torch.same(x, "mul"))
    return _where(torch, choice, above, below)


def _number(torch: Operators, view: LayerView) -> Tensor:
    """``softplus`` of a trained number, which autocast runs in fp32."""
    number = torch.parameter(Unit.ONE, 1, view.dtypes.norm, trained=view.trains_base)
    return torch.to(number, "fp32") if view.dtypes.autocast else number


def _minimum(torch: Operators, x: Tensor) -> Tensor:
    """``minimum`` with a number: backward halves the gradient of equals, and takes that of smaller ones."""

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        _half = torch.like(gradient, "div")
        _equal = torch.like(kept[0], "eq", "bool")
        chosen = torch.like(gradient, "where")
        _larger = torch.like(kept[0], "gt", "bool")
        return [chosen]

    return record(torch, torch.like(x, "minimum"), [x], [x], backward)


def _expm1(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """``expm1``: saves its output; the gradient is ``gradient * (output + 1)``."""

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        _shifted = torch.like(kept[0], "add")
        return [torch.like(gradient, "mul")]

    wide = torch.to(x, "fp32") if view.dtypes.autocast else x
    out = torch.like(wide, "expm1")
    return record(torch, out, [wide], [out], backward)


def _where(torch: Operators, choice: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """``where``: saves the choice; both gradients are new."""
    out = torch.like(x, "where")
    dtype = x.dtype

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [torch.like(gradient, "where", dtype), torch.like(gradient, "where", dtype)]

    return record(torch, out, [x, other], [choice], backward)
