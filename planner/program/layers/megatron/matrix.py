"""One matrix of Transformer Engine and what GPUs that divide it send, in 16 bits and in 8."""

from __future__ import annotations

from dataclasses import dataclass

from planner.program.ops.autograd import record
from planner.program.ops.collectives import ALL_GATHER, REDUCE_SCATTER
from planner.program.ops.operators import Costs, Operators
from planner.program.ops.tensors import Tensor, Unit


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix as its module has it, of which this GPU has ``weight``; it makes ``out`` of its input.

    ``gathers``: its input is that of ``gathers`` GPUs; ``scatters``: so many sum what it makes, and each
    keeps its own tokens of that.  1: neither.  ``adds``: the gradient of its weight is no tensor.
    """

    weight: Tensor
    out: tuple[Unit, float]
    gathers: int = 1
    scatters: int = 1
    copies: int = 1
    bias: Tensor | None = None
    adds: bool = True


def of_weight(torch: Operators, matrix: Matrix, costs: Costs) -> Tensor:
    """A gradient, which is no tensor where the product adds it to Megatron's buffer."""
    weight = matrix.weight
    if not matrix.adds:
        return torch.new(weight.unit, weight.count, weight.dtype, "mm", cost=costs.of_weight)
    torch.pay(costs.of_weight)
    return Tensor(None, weight.unit, weight.count, weight.dtype)


def gathered(torch: Operators, whole: Tensor, parts: int) -> Tensor:
    """The tokens of all GPUs; what is there already where one has all."""
    if parts == 1:
        return whole
    return torch.new(whole.unit, whole.count, whole.dtype, ALL_GATHER, cost=None)


def scattered(torch: Operators, whole: list[Tensor], parts: int) -> Tensor:
    """This GPU's tokens of a sum; ``whole`` has what it makes of all, and is emptied."""
    made = whole.pop()
    if parts == 1:
        return made
    return torch.new(made.unit, made.count / parts, made.dtype, REDUCE_SCATTER, cost=None)


def gathered_rows(torch: Operators, x: Tensor, parts: int) -> Tensor:
    """Rows of all GPUs, whose gradients are summed."""
    if parts == 1:
        return x

    def backward(_: list[Tensor], gradient: Tensor) -> list[Tensor | None]:
        return [scattered(torch, [gradient], parts)]

    return record(
        torch, gathered(torch, Tensor(None, x.unit, x.count * parts, x.dtype), parts), [x], [], backward
    )
