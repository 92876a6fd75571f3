"""What autocast keeps of what it casts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.domain.recipes.parallel import Parallel
from planner.program.ops.casts import autocast, weight_copy
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


@pytest.mark.parametrize(
    ("tensor", "in_graph", "casts", "n_copies"),
    [
        (1, False, "undivided", 1),
        (2, True, "undivided", 1),
        (2, False, "undivided", 2),
        (2, False, "always", 1),
    ],
)
def test_parts_of_matrices_are_cast_anew_where_there_is_no_graph(
    tensor: int,
    in_graph: bool,
    casts: str,
    n_copies: int,
) -> None:
    """Transformers takes them as plain tensors then, which are no leaves; older versions were not read."""
    view = view_of("full", autocast=True, compute="bf16", model_parallel="features", fsdp2_casts=casts)
    view = replace(view, recipe=replace(view.recipe, parallel=Parallel(tensor=tensor)))
    torch = Operators()
    torch.grad_enabled = in_graph
    torch.enter("forward")
    weight = torch.parameter(Unit.ONE, 64, "fp32", trained=True)
    copies = [weight_copy(torch, view, weight) for _ in range(2)]
    assert len({id(each) for each in copies}) == n_copies
