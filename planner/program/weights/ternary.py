"""Products of an input in 8 bits and a weight of three values, both rounded by kernels that write 16 bits.

Gradients pass the rounding by: they are those of the input and of the weight themselves.
Source: onebitllms 0.0.4 layers/bitnet.py BitNetLinear, kernels/weight_quant.py, kernels/activation_quant.py.
Ignored: sums of blocks of 256 weights, and the largest of each row.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import linear_function, rows_of
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView


def product_ternary(
    torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor, own: tuple[Tensor, Tensor | None]
) -> Tensor:
    """The product of ``x`` with a weight and a bias (``own``); the rounded copies of both are saved."""
    weight, bias = own
    x = _rounded(torch, x)
    with torch.counted_as("weight_casts"):
        weight = _rounded(torch, weight)
    return linear_function(torch, view)(x, weight, spec.out_features * rows_of(spec, x), bias=bias)


def _rounded(torch: Operators, x: Tensor) -> Tensor:
    """``x + (round(x) - x).detach()``."""
    rounded = torch.like(x, "empty_like")
    difference = torch.like(x, "sub", cost=(rounded,))
    del rounded
    out = torch.like(x, "add", cost=(difference,))
    return record(torch, out, [x], [], lambda _, gradient: [gradient])
