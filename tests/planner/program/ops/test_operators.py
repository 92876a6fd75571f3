"""What single operators save and make in backward, in bytes for each token of tensors of 64 features.

Worked out from torch 2.13 ``tools/autograd/derivatives.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.program.ops.autograd import LEAF_ORDER, run_backward
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Dtype, Node, Tensor, Unit

FEATURES = 64
Steps = list[tuple[str, float]]


def given(torch: Operators, *, needs: bool = True, dtype: Dtype = "bf16", count: float = FEATURES) -> Tensor:
    """A tensor for each token, which is no part of what is counted."""
    tensor = Tensor(None, Unit.TOKENS, count, dtype)
    if needs:
        tensor.node = Node("input", LEAF_ORDER, None)
    return tensor


def made(torch: Operators, stage: str) -> Steps:
    """Operators of a stage, each with the bytes for each unit of what it makes."""
    return [(torch.ops[slot][1], torch.unit_bytes[slot]) for slot in torch.stages[stage] if slot >= 0]


def after(part: Callable[[Operators], Tensor]) -> tuple[list[float], Steps]:
    """Bytes that one operator leaves behind for backward, its output gone, and what backward makes."""
    torch = Operators()
    torch.enter("forward")
    out = part(torch)
    node, gradient = out.node, Tensor(None, out.unit, out.count, out.dtype)
    assert node is not None
    del out
    events = torch.stages["forward"]
    kept = [torch.unit_bytes[slot] for slot in events if slot >= 0 and ~slot not in events]
    torch.enter("backward")
    gradients = [gradient]
    del gradient
    run_backward(torch, node, gradients)
    return kept, made(torch, "backward")


@pytest.mark.parametrize(
    ("part", "kept", "backward"),
    [
        (lambda t: t.same(given(t), "neg"), [], [("neg", 128)]),
        (lambda t: t.kernel(given(t), "tanh", saves="output"), [128], [("tanh_backward", 128)]),
        (lambda t: t.to(given(t), "fp32"), [], [("to", 128)]),
        (
            lambda t: t.softmax(given(t), "fp32"),
            [256],
            [("softmax_backward", 256), ("softmax_backward", 128)],
        ),
        (lambda t: t.add(given(t), given(t)), [], []),
        (lambda t: t.sub(given(t), given(t)), [], [("neg", 128)]),
        (lambda t: t.sub(given(t), given(t, needs=False)), [], []),
        (lambda t: t.mul(given(t), given(t)), [], [("mul", 128)] * 2),
        (lambda t: t.mul(given(t), given(t, needs=False)), [], [("mul", 128)]),
        (lambda t: t.square(given(t)), [], [("pow", 128), ("mul", 128), ("mul", 128)]),
        (lambda t: t.rsqrt(given(t)), [128], [("pow", 128), ("mul", 128), ("mul", 128)]),
        (lambda t: t.cat([given(t), given(t, count=32)]), [], []),
        (lambda t: t.part(given(t), 16), [], [("slice_backward", 128)]),
        (lambda t: t.index(given(t), 16), [], [("new_zeros", 128)]),
        (lambda t: t.moved(given(t)), [], [("clone", 128)]),
        (lambda t: t.mean_of_rows(given(t)), [], [("div", 128)]),
    ],
)
def test_what_stays_for_backward_and_what_it_makes(
    part: Callable[[Operators], Tensor], kept: list[float], backward: Steps
) -> None:
    """Inputs are not counted: what stays is the operator's own output, where it saves that."""
    assert after(part) == (kept, backward)


def test_a_cast_to_the_same_dtype_is_the_tensor_itself() -> None:
    """No operator runs."""
    torch = Operators()
    x = given(torch)
    assert torch.to(x, "bf16") is x
    assert torch.ops == []


@pytest.mark.parametrize(
    ("x_needs", "trained", "steps"),
    [
        (True, False, [("mm", 128)]),
        (False, True, [("mm", 64 * 32 * 2)]),
        (True, True, [("mm", 64 * 32 * 2), ("mm", 128)]),
    ],
)
def test_a_product_makes_the_gradients_that_are_needed_the_weights_first(
    x_needs: bool, trained: bool, steps: Steps
) -> None:
    """64 features to 32, a weight of 2,048 elements."""

    def part(torch: Operators) -> Tensor:
        weight = torch.parameter(Unit.ONE, 64 * 32, "bf16", trained=trained)
        return torch.mm(given(torch, needs=x_needs), weight, 32)

    assert after(part) == ([], steps)


def test_a_bias_and_deepspeed_make_the_inputs_gradient_first() -> None:
    """``addmm`` of torch, and ``LinearFunctionForZeroStage3`` of DeepSpeed, which sums no bias."""

    def part(torch: Operators, *, biased: bool, by_deepspeed: bool) -> Tensor:
        weight = torch.parameter(Unit.ONE, 64 * 32, "bf16", trained=True)
        bias = torch.parameter(Unit.ONE, 32, "bf16", trained=True) if biased else None
        return torch.mm(given(torch), weight, 32, bias=bias, by_deepspeed=by_deepspeed)

    assert after(lambda t: part(t, biased=True, by_deepspeed=False))[1] == [
        ("addmm", 128),
        ("addmm", 64 * 32 * 2),
        ("sum", 32 * 2),
    ]
    assert after(lambda t: part(t, biased=False, by_deepspeed=True))[1] == [
        ("mm", 128),
        ("mm", 64 * 32 * 2),
    ]


def test_a_product_of_scores_makes_the_gradient_of_keys_first() -> None:
    """Two heads of 32 features: two scores for each pair; with a factor each gradient is multiplied."""

    def part(torch: Operators, *, scaled: bool) -> Tensor:
        query, key = given(torch), given(torch)
        key.head_by_head = True
        return torch.bmm(query, key, (Unit.PAIRS, 2), scaled=scaled)

    assert after(lambda t: part(t, scaled=False))[1] == [("bmm_backward", 128)] * 2
    assert after(lambda t: part(t, scaled=True))[1] == [("bmm_backward", 128), ("mul", 128)] * 2


def test_halves_are_joined_when_both_gradients_are_there() -> None:
    """One gradient of 64 features from two of 32."""

    def part(torch: Operators) -> Tensor:
        first, second = torch.halves(given(torch))
        return torch.mul(torch.same(first, "silu"), second)

    assert [step for step in after(part)[1] if step[0] == "cat"] == [("cat", 128)]


def test_parameters_are_counted_once_and_again_when_code_runs_again() -> None:
    """A recomputation begins the count again and asks for the same weights."""
    torch = Operators(accumulates=True)
    first = torch.parameter(Unit.ONE, 10, "fp32", trained=True, owner="norm")
    torch.parameter(Unit.ONE, 20, "fp32", trained=False)
    torch.n_parameters = 0
    again = torch.parameter(Unit.ONE, 10, "fp32", trained=True, owner="norm")
    assert [each.count for each in torch.parameters] == [10, 20]
    assert first.node is not None
    assert again.node is not None
    assert first.node.parameter == again.node.parameter == 0
    assert first.node.grad is not None, "a gradient from the micro-step before"
    assert torch.modules[torch.parameters[0].module] == ("norm",)


def test_a_scaled_batched_product_is_an_operator_of_its_own() -> None:
    """``baddbmm``, which selective checkpoints do not keep; nor do they see a sum in DeepSpeed's product."""
    torch = Operators()
    torch.enter("forward")
    x = torch.new(Unit.TOKENS, 4, "bf16", "input")
    for scaled in (False, True):
        torch.bmm(x, x, (Unit.PAIRS, 2), scaled=scaled)
    weight, bias = torch.new(Unit.ONE, 16, "bf16", "input"), torch.new(Unit.ONE, 4, "bf16", "input")
    for by_deepspeed in (False, True):
        torch.mm(x, weight, 4, bias=bias, by_deepspeed=by_deepspeed)
    assert [op for _, op in torch.ops if op != "input"] == ["bmm", "baddbmm", "addmm", "mm"]
