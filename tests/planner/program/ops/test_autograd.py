"""The order of a backward pass, when it lets go of what was saved, and which sums it makes in place."""

from __future__ import annotations

import pytest

from planner.program.ops.autograd import run_backward
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Mark, Tensor, Unit


def leaf(torch: Operators, count: float = 64) -> Tensor:
    """A trained tensor."""
    return torch.parameter(Unit.TOKENS, count, "bf16", trained=True)


def backward_of(torch: Operators, out: Tensor) -> None:
    """Run backward on a gradient that nobody else refers to."""
    assert out.node is not None
    torch.enter("backward")
    run_backward(torch, out.node, [torch.new(out.unit, out.count, out.dtype, "ones")])


def ops_of(torch: Operators, stage: str) -> list[str]:
    """Operators that allocate in a stage, in order."""
    return [torch.ops[slot][1] for slot in torch.stages[stage] if slot >= 0]


def test_the_node_made_last_runs_first() -> None:
    """Two branches from one input: that of the later operator is gone back first."""
    torch = Operators()
    torch.enter("forward")
    x = leaf(torch)
    early, late = torch.same(x, "early"), torch.same(x, "late")
    backward_of(torch, torch.add(late, early))
    assert ops_of(torch, "backward") == ["ones", "late", "early"]


def test_a_node_waits_for_all_its_gradients() -> None:
    """``exp`` has two readers, of which one is far away: it runs once, after both."""
    torch = Operators()
    torch.enter("forward")
    middle = torch.same(leaf(torch), "exp")
    far = torch.same(torch.same(middle, "neg"), "neg")
    backward_of(torch, torch.add(far, middle))
    assert [op for op in ops_of(torch, "backward") if op == "exp"] == ["exp"]
    assert ops_of(torch, "backward")[-1] == "exp"


@pytest.mark.parametrize(("shared", "n_sums"), [(False, 0), (True, 1)])
def test_a_sum_is_made_in_place_where_nobody_else_holds_the_first_gradient(
    *, shared: bool, n_sums: int
) -> None:
    """The gradient of the whole waits for two branches; where a third one waits for it too, the sum of the
    two is a new tensor.
    """
    torch = Operators()
    torch.enter("forward")
    x = torch.same(leaf(torch), "exp")
    waits = torch.same(leaf(torch), "abs")
    negative = torch.same(x, "neg")
    inner = torch.add(x, waits) if shared else x
    backward_of(torch, torch.add(inner, negative))
    assert ops_of(torch, "backward").count("add") == n_sums


def test_a_view_is_not_added_to() -> None:
    """Two products read one input: the gradient of the later one is a view, so their sum is a new tensor."""
    torch = Operators()
    torch.enter("forward")
    x = leaf(torch)
    first, second = (torch.mm(x, torch.parameter(Unit.ONE, 64 * 64, "bf16", trained=False), 64) for _ in "ab")
    backward_of(torch, torch.mul(first, second))
    assert ops_of(torch, "backward") == ["ones", "mul", "mul", "mm", "mm", "add"]


def test_the_gradient_goes_when_a_node_has_run_and_then_what_it_saved() -> None:
    """Outputs of two kernels in a row: the later one's goes before the earlier one's gradient is made."""
    torch = Operators()
    torch.enter("forward")
    x = torch.kernel(leaf(torch), "tanh", saves="output")
    out = torch.kernel(x, "exp", saves="output")
    del x
    root = out.node
    assert root is not None
    del out
    torch.enter("backward")
    run_backward(torch, root, [Tensor(None, Unit.TOKENS, 64, "bf16")])
    # 0 and 1: outputs of tanh and exp; 2 and 3: gradients of exp's and tanh's inputs.
    assert torch.stages["backward"][:5] == [2, ~1, 3, ~2, ~0]


def test_a_gradient_gets_shape_and_dtype_of_its_input() -> None:
    """That of a weight that was read for each token is summed over tokens, then cast from fp32."""
    torch = Operators()
    torch.enter("forward")
    x = torch.parameter(Unit.TOKENS, 64, "fp32", trained=False)
    weight = torch.parameter(Unit.ONE, 64, "bf16", trained=True)
    backward_of(torch, torch.mul(x, weight))
    made = [slot for slot in torch.stages["backward"] if slot >= 0]
    assert [(torch.ops[slot][1], torch.units[slot], torch.unit_bytes[slot]) for slot in made[1:]] == [
        ("mul", Unit.TOKENS, 256),
        ("sum", Unit.ONE, 256),
        ("to", Unit.ONE, 128),
    ]


def test_the_first_gradient_of_a_parameter_stays_and_is_ready_once_more_when_added_to() -> None:
    """With a gradient from the micro-step before, the new one goes again."""
    for accumulates in (False, True):
        torch = Operators(accumulates=accumulates)
        torch.enter("forward")
        backward_of(torch, torch.same(leaf(torch), "neg"))
        slot = torch.ops.index(("", "neg"), 1)
        assert (~slot in torch.stages["backward"]) is accumulates
        assert (torch.terms[slot] == "gradients") is not accumulates
        _, _, ready = torch.marks[-1]
        assert ready == Mark("gradient", 0, slot)


def test_nothing_is_saved_without_gradients() -> None:
    """Under ``no_grad``, and where no input needs one."""
    torch = Operators()
    torch.enter("forward")
    with torch.no_grad():
        assert torch.kernel(leaf(torch), "silu").node is None
    frozen = torch.parameter(Unit.TOKENS, 64, "bf16", trained=False)
    assert torch.kernel(frozen, "silu").node is None
