"""AWQ matrices: the weight is unpacked for each product, and in backward once more,
where it is repeated for each sample.

Source: gptqmodel 7.3.4 ``nn_modules/qlinear/gemm_awq.py`` AwqGEMMLinear, AwqGemmFn, the first trainable
kernel of its choice; autoawq 0.2.9 ``modules/linear/gemm.py`` WQLinear_GEMM, WQLinearMMFunction, which
computes in fp16 whatever comes in.
Ignored: up to 1,024 tokens both multiply by the packed weight in forward.
"""

from __future__ import annotations

from planner.domain.model import LinearSpec
from planner.program.ops.autograd import record
from planner.program.ops.casts import costs_of, rows_of, unpacked
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Tensor, Unit, promoted
from planner.program.view import LayerView


def linear_awq(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """The input in 16 bits, the product, and its result in the dtype of the input."""
    given = x.dtype
    half: Dtype = "bf16" if given == "bf16" and view.stack.packed_kernels == "gptqmodel" else "fp16"
    x = torch.to(x, half)
    out = _product(torch, view, spec, x)
    return torch.to(out, given)


def _product(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """A function that keeps its input, although the gradient needs only the packed weight."""
    in_count, half, costs = x.count, x.dtype, costs_of(spec, x)

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        with torch.counted_as("dequantization"):
            weight = torch.to(unpacked(torch, view, spec, half), gradient.dtype)
            _repeated = torch.new(
                Unit.ROWS, weight.count, gradient.dtype, "repeat", "dequantization", cost=[weight]
            )
        return [torch.new(gradient.unit, in_count, gradient.dtype, "bmm", cost=costs.of_x)]

    return record(torch, _forward(torch, view, spec, x), [x], [x], backward)


def _forward(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """The product, and the sum with the bias, both inside of the function."""
    out = _multiplied(torch, view, spec, x)
    if not spec.bias:
        return out
    torch.parameter(Unit.ONE, spec.out_features, x.dtype, trained=False)
    return torch.like(out, "add", promoted(out.dtype, x.dtype))


def _multiplied(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """Autocast casts both factors where it computes in another dtype."""
    seen = view.product_dtype(x.dtype)
    with torch.counted_as("dequantization"):
        weight = unpacked(torch, view, spec, x.dtype)
        _weight = torch.to(weight, seen)
    seen_input = x if x.dtype == seen else torch.like(x, "to", seen)
    count = spec.out_features * rows_of(spec, x)
    return torch.new(x.unit, count, seen, "mm", cost=costs_of(spec, seen_input).forward)
