"""What some models make of the head's weight, and of its product."""

from __future__ import annotations

from planner.program.ops.autograd import record
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor


def capped(torch: Operators, passed: list[Tensor]) -> Tensor:
    """``cap * tanh(x / cap)`` of what ``passed`` holds, which is emptied."""
    x = torch.same(passed.pop(), "div")
    x = torch.kernel(x, "tanh", saves="output")
    return torch.same(x, "mul")


def normalised(torch: Operators, weight: Tensor) -> Tensor:
    """``normalize(weight)``: divided by the norms of its rows, which are spread out again in backward.

    Source: baichuan-inc/Baichuan2-7B modeling_baichuan.py NormHead.forward; torch 2.13 ``div`` and
    ``linalg_vector_norm`` in tools/autograd/derivatives.yaml.
    """
    torch.pay([weight])

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        # C++ keeps what an expression makes until it ends; the sum of both parts is made in place.
        spread = [torch.like(gradient, op) for op in ("neg", "div", "div", "mul")].pop()
        of_weight = torch.like(gradient, "div")
        del spread
        _through_norms = [torch.like(gradient, op) for op in ("div", "mul")]
        return [of_weight]

    return record(torch, torch.like(weight, "div"), [weight], [], backward)
