"""What the towers of all vision-language models have: the view of one, its convolution,
and norms and matrices of a projector.

Source: as :mod:`planner.program.vision.tower`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.vision import TowerSpec
from planner.program.layers.activations import activation
from planner.program.layers.norms import norm
from planner.program.ops.casts import rows_of
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView
from planner.program.weights.matrices import autocast, linear, weight_copy


@dataclass(frozen=True, slots=True)
class SeeingView:
    """The tower around its layers.

    ``hooked``: what its first layer reads is made to require a gradient; ``differentiated``:
    gradients reach its layers.  ``layers``: those of a tower that only runs forward.
    """

    tower: TowerSpec
    entry: LayerView
    projector: LayerView
    stacked: LayerView | None
    hooked: bool
    differentiated: bool
    layers: tuple[LayerView, ...] = ()


def convolution(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """A product of each patch with all kernels."""
    spec, trained = view.block.linears[0], view.trains_base
    weight = torch.parameter(Unit.ONE, spec.weight_count, view.dtypes.base, trained=trained)
    bias = (
        torch.parameter(Unit.ONE, spec.bias_count, view.dtypes.base, trained=trained) if spec.bias else None
    )
    bias = None if bias is None else weight_copy(torch, view, bias)
    weight = weight_copy(torch, view, weight)
    return torch.mm(autocast(torch, view, x), weight, spec.out_features * rows_of(spec, x), bias=bias)


def merged(torch: Operators, view: LayerView, x: Tensor, *, moves: bool = False) -> Tensor:
    """A norm and the two matrices of a projector; ``moves``: patches of a token are copied side by side."""
    first, last = view.block.linears
    x = norm(torch, view, view.block.norms[0], x)
    x = torch.contiguous(x) if moves else x
    out = linear(torch, view, first, x)
    return linear(torch, view, last, activation(torch, view, out))
