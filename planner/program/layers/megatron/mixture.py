"""A mixture of experts of Megatron-Core."""

from __future__ import annotations

from planner.errors import NotModelledError
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView


def mixture(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    raise NotModelledError("mixtures of experts are not modelled under Megatron")
