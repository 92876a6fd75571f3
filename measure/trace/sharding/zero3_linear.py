"""``torch.nn.functional.linear`` under ZeRO-3: a function of DeepSpeed stands in its place from
``zero.Init`` on.

Source: DeepSpeed 0.19.8 runtime/zero/partition_parameters.py ``_enable_mem_efficient_linear``,
runtime/zero/linear.py ``LinearFunctionForZeroStage3``; with ``memory_efficient_linear``, on by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch


class _Linear(torch.autograd.Function):
    """Saves input and weight whether or not the weight is trained; neither gradient is a view of a product.

    The gradient of the input is made first, and the others are there before any is handed on.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight, bias)
        if bias is not None and x.dim() == weight.dim():
            return torch.addmm(bias, x, weight.t())
        out = x @ weight.t()
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        x, weight, bias = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        of_x = gradient @ weight if needs_x else None
        of_weight = gradient.flatten(0, -2).t() @ x.flatten(0, -2) if needs_weight else None
        of_bias = gradient.flatten(0, -2).sum(0) if needs_bias and bias is not None else None
        return of_x, of_weight, of_bias


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    out: torch.Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


@contextmanager
def linear_of_zero3() -> Iterator[None]:
    """DeepSpeed's function in the place of torch's."""
    with mock.patch.object(torch.nn.functional, "linear", _linear):
        yield
