"""What autocast keeps of what it casts."""

from __future__ import annotations

from planner.program.ops.casts import autocast
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Node, Unit
from tests.planner.program.matrix_runs import view_of


def n_casts(*, leaf: bool) -> int:
    """Casts of an fp32 input that two products read."""
    torch, view = Operators(), view_of("lora", autocast=True, compute="bf16")
    torch.enter("forward")
    x = torch.new(Unit.TOKENS, 64, "fp32", "input")
    x.node = Node("input", 0, None)
    torch.leaf = x.node if leaf else None
    for _ in range(2):
        autocast(torch, view, x)
    return sum(op == "to" for _, op in torch.ops)


def test_an_input_that_was_made_to_require_a_gradient_is_cast_once() -> None:
    """As the first layer's is; what an operator returned is cast for each product."""
    assert (n_casts(leaf=True), n_casts(leaf=False)) == (1, 2)
