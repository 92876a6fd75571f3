"""A causal convolution of each feature, in one kernel of causal-conv1d 1.6 (causal_conv1d_interface.py,
cpp_functions.py), or as Transformers writes it in torch.

Source: transformers 5.23 models/qwen3_5/modeling_qwen3_5.py causal_conv1d_fn.
Ignored: positions that padding adds to each sample.
"""

from __future__ import annotations

from planner.program.ops.autograd import record
from planner.program.ops.casts import autocast, weight_copy
from planner.program.ops.operators import Operators, shape_of
from planner.program.ops.tensors import Tensor, Unit
from planner.program.view import LayerView


def convolved(
    torch: Operators, view: LayerView, x: Tensor, kernel: int, owner: str, *, bias: bool = False
) -> Tensor:
    """A convolution of each feature over ``kernel`` positions; saves its input."""
    dtype, width = view.dtypes.base, x.count
    sizes = [width * kernel, width] if bias else [width * kernel]
    weights = [
        torch.parameter(Unit.ONE, size, dtype, trained=view.trains_base, owner=owner) for size in sizes
    ]

    if view.stack.recurrent_kernels == "torch":
        return _plain(torch, view, x, weights)

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_x = torch.like(kept[0], "causal_conv1d_backward", cost=(gradient,))
        wide = [torch.new(Unit.ONE, size, "fp32", "zeros_like") for size in sizes]
        return [of_x, *(torch.to(each, dtype) for each in wide)]

    return record(torch, torch.like(x, "causal_conv1d"), [x, *weights], [x], backward)


def _plain(torch: Operators, view: LayerView, x: Tensor, weights: list[Tensor]) -> Tensor:
    """``F.conv1d``, cut to the length of its input."""
    x, *weights = autocast(torch, view, x), *(weight_copy(torch, view, each) for each in weights)
    shapes = [shape_of(each) for each in weights if each.node is not None]

    def backward(kept: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        of_x = torch.like(kept[0], "convolution_backward", cost=(gradient,))
        made: list[Tensor | None] = [of_x, *(torch.like(each, "new", cost=None) for each in shapes)]
        return made + [None] * (1 + len(weights) - len(made))

    out = record(torch, torch.like(x, "convolution"), [x, *weights], [x, *weights[:1]], backward)
    return torch.part(out, out.count)
