"""VeRA beside a matrix: two frozen matrices that all layers share, and a trained vector behind either.

Source: peft 0.21 ``tuners/vera/layer.py`` Linear.forward, ``tuners/vera/model.py`` _init_vera_A_vera_B.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.casts import Base, autocast, linear_function, rows_of
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.lora import FOUR_BIT, dropped


def with_vectors(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, base: Base) -> Tensor:
    """``base(x) + b * (B @ (d * (A @ dropout(x))))``; that of a 4-bit matrix is copied first.

    The sum has the dtype of the base's result again, then that of ``x``.
    """
    passed, given = [base(torch, view, spec, x)], x.dtype
    with torch.counted_as("adapters"):
        if view.quantized(spec) and view.recipe.numerics.quantization in FOUR_BIT:
            passed.append(torch.contiguous(passed.pop()))
        before = passed[-1].dtype
        x = torch.to(x, view.dtypes.adapter)
        passed.append(torch.add(passed.pop(), _branch(torch, view, spec, x)))
        passed.append(torch.to(passed.pop(), before))
        return torch.to(passed.pop(), given)


def _branch(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """What is added to the base's result; the layer refers to the last ``x`` until then, not to products."""
    dtype, rows, unit = view.dtypes.adapter, rows_of(spec, x), x.unit
    behind_b = torch.parameter(Unit.ONE, spec.out_features, dtype, trained=True, owner="vera_lambda_b")
    behind_a = torch.parameter(Unit.RANK, 1, dtype, trained=True, owner="vera_lambda_d")
    passed = [dropped(torch, view, x)]
    passed.append(_times(torch, view, spec.in_features, passed, (Unit.RANK_TOKENS, rows)))
    passed.append(torch.mul(behind_a, passed.pop()))
    passed.append(_times(torch, view, spec.out_features, passed, (unit, rows * spec.out_features)))
    return torch.mul(behind_b, passed.pop())


def _times(
    torch: Operators, view: LayerView, width: int, passed: list[Tensor], out: tuple[Unit, float]
) -> Tensor:
    """A product with a part of a shared matrix of what ``passed`` holds, until then; it is emptied.

    Autocast casts the part anew each time, as it is not trained.
    """
    x = passed.pop()
    part = autocast(torch, view, Tensor(None, Unit.RANK, width, view.dtypes.adapter))
    return linear_function(torch, view)(autocast(torch, view, x), part, out)
