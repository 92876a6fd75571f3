"""What one run of a part records: its ports, what it keeps, shares and frees."""

from __future__ import annotations

import pytest

from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit
from planner.program.recorded_part import (
    GRADIENT_SLOT,
    INPUT_SLOT,
    NO_INPUT,
    SHARED_SLOTS,
    Gradients,
    Shape,
    Template,
    Terms,
    run,
)

TERMS = Terms("saved_activations", "block_recompute")
ENTRY = Shape(64, "bf16", True)
# Slots 0 and 1 are the ports.
FIRST, SECOND, OF_SECOND, OF_FIRST = 2, 3, 4, 5


def two_kernels(torch: Operators, x: Tensor) -> Tensor:
    """``silu(-x)``, whose input is saved."""
    return torch.kernel(torch.same(x, "neg"), "silu")


def product(torch: Operators, x: Tensor) -> Tensor:
    """A trained matrix of 64 to 32 features."""
    with torch.inside("proj"):
        return torch.mm(x, torch.parameter(Unit.ONE, 64 * 32, "bf16", trained=True), 32)


def events(template: Template) -> list[int]:
    """All events in the order of stages."""
    return [event for stage in template.stages.values() for event in stage]


def test_a_part_frees_its_input_and_hands_on_output_and_gradient() -> None:
    """What the next part frees, the output and the gradient of the input, stays."""
    template = run(two_kernels, ENTRY, TERMS)
    assert template.stages["forward"].tolist() == [FIRST, SECOND, ~INPUT_SLOT]
    assert template.stages["backward"].tolist() == [OF_SECOND, ~GRADIENT_SLOT, ~FIRST, OF_FIRST, ~OF_SECOND]
    assert (template.out_slot, template.gradient_slot, template.out) == (SECOND, OF_FIRST, ENTRY)
    made, freed = ([e for e in events(template) if e >= 0], [~e for e in events(template) if e < 0])
    assert set(made) - set(freed) == {SECOND, OF_FIRST}
    assert len(freed) == len(set(freed))
    assert (template.foreign["forward"], template.foreign["backward"]) == ((2,), (1,))


def test_what_outlives_the_forward_pass_is_saved_and_the_rest_is_temporary() -> None:
    """A tensor between two casts goes at once; what silu reads stays."""

    def part(torch: Operators, x: Tensor) -> Tensor:
        return two_kernels(torch, torch.to(torch.to(x, "fp32"), "bf16"))

    template = run(part, ENTRY, TERMS)
    found = [(op, term) for (_, op), term in zip(template.ops, template.terms, strict=True)]
    kept, brief = "saved_activations", "block_recompute"
    assert found[2:7] == [
        ("to", brief),
        ("to", brief),
        ("neg", kept),
        ("silu", kept),
        ("silu_backward", brief),
    ]


@pytest.mark.parametrize(("gradients", "kept"), [("first", 1), ("added", 0), ("none", 0)])
def test_gradients_of_parameters_stay_the_first_time(gradients: Gradients, kept: int) -> None:
    """Those of later micro-steps are added to them and go; without gradients there is no backward pass."""
    template = run(product, ENTRY, TERMS, gradients=gradients)
    found = [(unit, count, module) for unit, count, _, _, module in template.gradients]
    assert found == [(Unit.ONE, 64 * 32, "proj")] * kept
    assert bool(template.stages["backward"]) is (gradients != "none")
    assert template.out.needs_grad is (gradients != "none")
    assert [each.trained for each in template.parameters] == [True]


def test_a_part_without_input_has_ports_all_the_same() -> None:
    """Nothing is sent on where nothing needs a gradient."""
    template = run(lambda torch, _: torch.new(Unit.TOKENS, 64, "bf16", "embedding"), NO_INPUT, TERMS)
    assert (template.out_slot, template.gradient_slot) == (2, None)
    assert template.out == Shape(64, "bf16", False)


def test_a_table_is_shared_by_name() -> None:
    """The part that made it says where it lies; the one that gets it frees a slot beyond its own."""

    def maker(torch: Operators, x: Tensor) -> Tensor:
        torch.shared["cos"] = torch.new(Unit.LENGTH, 32, "fp32", "cos")
        return torch.same(x, "neg")

    def reader(torch: Operators, x: Tensor) -> Tensor:
        return torch.mul(x, torch.shared.pop("cos"))

    made = run(maker, ENTRY, TERMS)
    assert made.shares == {"cos": (2, Shape(32, "fp32", False, Unit.LENGTH, "cos"))}
    assert ~2 not in events(made)
    read = run(reader, ENTRY, TERMS, {"cos": made.shares["cos"][1]})
    assert (read.crossing, read.shares) == (("cos",), {})
    assert events(read).count(~SHARED_SLOTS) == 1
    assert [slot for slots in read.freed_shares.values() for slot in slots] == [SHARED_SLOTS]


def test_variables_go_at_their_moment() -> None:
    """What attention returned beside its output when the next layer has run, the loop's with the graph."""

    def part(torch: Operators, x: Tensor) -> Tensor:
        torch.returned.append(torch.new(Unit.PAIRS, 2, "bf16", "weights"))
        torch.outputs.append(torch.new(Unit.TOKENS, 8, "bf16", "logits"))
        return torch.same(x, "neg")

    stages = run(part, ENTRY, TERMS).stages
    assert (stages["forward_next"].tolist(), stages["backward_end"].tolist()) == ([~2], [~3])


def test_another_batch_has_other_units() -> None:
    """Units that are not named stay, and so do the events."""
    template = run(product, ENTRY, TERMS)
    other = template.in_units({Unit.TOKENS: Unit.EVAL_TOKENS})
    assert set(template.units) == {Unit.TOKENS, Unit.ONE}
    assert set(other.units) == {Unit.EVAL_TOKENS, Unit.ONE}
    assert other.columns.units.tolist() == [int(unit) for unit in other.units]
    assert other.stages == template.stages
