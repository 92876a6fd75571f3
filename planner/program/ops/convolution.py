"""A causal convolution of each feature,
in one kernel of causal-conv1d 1.6 (causal_conv1d_interface.py, cpp_functions.py).
"""

from __future__ import annotations

from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView


def convolved(
    torch: Operators, view: LayerView, x: Tensor, kernel: int, owner: str, *, bias: bool = False
) -> Tensor:
    """A convolution of each feature over ``kernel`` positions and its activation; saves its input."""
    dtype, width = view.dtypes.base, x.count
    sizes = [width * kernel, width] if bias else [width * kernel]
    weights = [
        torch.parameter(Unit.ONE, size, dtype, trained=view.trains_base, owner=owner) for size in sizes
    ]

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_x = torch.like(kept[0], "causal_conv1d_backward", cost=(gradient,))
        wide = [torch.new(Unit.ONE, size, "fp32", "zeros_like") for size in sizes]
        return [of_x, *(torch.to(each, dtype) for each in wide)]

    return record(torch, torch.like(x, "causal_conv1d"), [x, *weights], [x], backward)
