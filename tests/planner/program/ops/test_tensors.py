"""When the memory of a tensor is written down as allocated and as freed, and which moments engines see."""

from __future__ import annotations

from typing import get_args

import pytest

from planner.program.ops.tensors import ELEMENT_BYTES, Dtype, Tape, Unit, promoted, replaced


@pytest.fixture
def tape() -> Tape:
    """A tape that records the forward pass."""
    made = Tape()
    made.enter("forward")
    return made


def test_memory_goes_with_the_last_tensor_that_lies_in_it(tape: Tape) -> None:
    """A view keeps it; the second allocation comes before the first one is freed."""
    first = tape.new(Unit.TOKENS, 64, "fp32", "input")
    view = first.alias()
    del first
    _second = tape.new(Unit.TOKENS, 64, "bf16", "copy")
    assert tape.events == [0, 1]
    del view
    assert tape.events == [0, 1, ~0]
    assert (tape.units, tape.unit_bytes) == ([Unit.TOKENS] * 2, [256, 128])


def test_what_outlives_a_stage_is_freed_in_a_later_one(tape: Tape) -> None:
    """A stage that is entered again goes on where it was."""
    kept = tape.new(Unit.ONE, 8, "int64", "input")
    tape.enter("backward")
    del kept
    tape.enter("forward")
    tape.new(Unit.ONE, 8, "int64", "input")
    assert tape.stages == {"forward": [0, 1, ~1], "backward": [~0]}


def test_one_number_for_each_token_is_no_memory_but_costs_its_bytes(tape: Tape) -> None:
    """Two of them are, and one for each pair is."""
    single = tape.new(Unit.TOKENS, 1, "fp32", "mean")
    assert single.storage is None
    assert tape.units == []
    assert tape.work["forward", "elementwise", "bytes"] == {Unit.TOKENS: 4}
    assert tape.new(Unit.TOKENS, 2, "fp32", "mean").storage is not None
    assert tape.new(Unit.PAIRS, 1, "bool", "mask").storage is not None


def test_a_kept_output_is_not_made_again(tape: Tape) -> None:
    """A selective checkpoint may answer for a costly operator, not for others, nor without gradients."""
    kept = tape.new(Unit.TOKENS, 64, "bf16", "mm")
    tape.keeps = lambda _op, _make: kept
    assert tape.new(Unit.TOKENS, 64, "bf16", "mm") is kept
    assert tape.new(Unit.TOKENS, 64, "bf16", "add") is not kept
    with tape.no_grad():
        assert tape.new(Unit.TOKENS, 64, "bf16", "mm") is not kept


def test_a_module_is_named_within_its_own_and_marked_before_and_after(tape: Tape) -> None:
    """The same name in the same module is one module; an operator without a module counts to the part."""
    for _ in range(2):
        with tape.inside("mlp"), tape.inside("up"):
            tape.new(Unit.TOKENS, 64, "bf16", "mm")
    tape.new(Unit.TOKENS, 64, "bf16", "add")
    assert tape.modules == [(), ("mlp",), ("mlp", "up")]
    assert tape.ops == [("up", "mm"), ("up", "mm"), ("", "add")]
    once = [
        (0, "before_forward", 1),
        (0, "before_forward", 2),
        (2, "after_forward", 2),
        (2, "after_forward", 1),
    ]
    seen = [(place, mark.moment, mark.number) for _, place, mark in tape.marks]
    assert seen == [*once, *((place + 2, moment, number) for place, moment, number in once)]


def test_backward_leaves_the_inner_module_first(tape: Tape) -> None:
    """From 0, 1, 2 to 0, 3: modules that sent a gradient on are left, and 3 is entered."""
    tape.go_back_to((0, 1, 2))
    tape.passed = {1, 2}
    tape.marks.clear()
    tape.go_back_to((0, 3))
    moments = [(mark.moment, mark.number) for _, _, mark in tape.marks]
    assert moments == [("after_backward", 2), ("after_backward", 1), ("before_backward", 3)]


def test_a_module_whose_input_needs_no_gradient_is_never_left(tape: Tape) -> None:
    """Module 2 has sent none on."""
    tape.go_back_to((0, 1, 2))
    tape.passed = {1}
    tape.marks.clear()
    tape.go_back_to((0,))
    assert [(mark.moment, mark.number) for _, _, mark in tape.marks] == [("after_backward", 1)]


def test_values_are_as_before_after_an_error(tape: Tape) -> None:
    """Whatever ends the block."""

    def failing() -> None:
        with replaced(tape, module="inner", direction="backward"):
            assert (tape.module, tape.direction) == ("inner", "backward")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert (tape.module, tape.direction) == ("", "forward")


def test_two_kinds_of_16_bits_make_32() -> None:
    """And every dtype has a size."""
    assert [promoted("bf16", "bf16"), promoted("bf16", "fp16"), promoted("bf16", "fp32")] == [
        "bf16",
        "fp32",
        "fp32",
    ]
    assert set(ELEMENT_BYTES) == set(get_args(Dtype))
