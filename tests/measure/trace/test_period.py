"""How layers repeat, and records in passes over them."""

from __future__ import annotations

import pytest

from tests.extras import import_or_skip

import_or_skip("torch")

from measure.trace.period import Irregular, Pattern, Sweep, find_pattern, read_sweeps
from measure.trace.record import OUTSIDE, Place, Record, Stage, TracedBlock

EVERY_LAYER = Pattern(0, 1, 8, "layers")


def test_the_pattern_of_alternating_layers_is_found() -> None:
    """A dense first layer is prefix, layers that alternate make one period,
    and the prefix takes what is left over.
    """
    assert find_pattern(["a"] * 12, "layers") == Pattern(0, 1, 12, "layers")
    assert find_pattern(["a", "b"] * 6, "layers") == Pattern(0, 2, 6, "layers")
    assert find_pattern(["dense", *["moe"] * 9], "layers") == Pattern(1, 1, 9, "layers")
    assert find_pattern([*["s", "s", "f"] * 6, "s"], "layers") == Pattern(1, 3, 6, "layers")
    assert find_pattern(["a", "b", "c", "d"], "layers").periods == 0


def test_few_layers_stand_for_many() -> None:
    """Four periods behind the prefix are traced, or all where there are no more."""
    pattern = Pattern(1, 2, 9, "layers")
    assert pattern.traced_layers == 1 + 2 * 4
    assert Pattern(1, 2, 3, "layers").traced_layers == 1 + 2 * 3
    assert [pattern.period_of(layer) for layer in (OUTSIDE, 0, 1, 2, 3, 4)] == [None, None, 0, 0, 1, 1]


def made(number: int, layer: int, stage: Stage = "forward", micro_step: int = 0) -> Record:
    """A block that a layer allocates."""
    place = Place(stage, micro_step, layer)
    return Record(True, TracedBlock(number, 512, place, "op", f"layers.{layer}"), place)


def test_a_pass_over_the_layers_is_one_sweep() -> None:
    """Forward upwards and backward downwards, with what the ends of the model do left outside."""
    layers = [OUTSIDE, 0, 1, 2, 3, OUTSIDE]
    forward = [made(number, layer) for number, layer in enumerate(layers)]
    backward = [made(10 + number, layer, "backward") for number, layer in enumerate(reversed(layers))]
    parts = read_sweeps([*forward, *backward], EVERY_LAYER)
    sweeps = [part for part in parts if isinstance(part, Sweep)]
    assert [sweep.order for sweep in sweeps] == [(0, 1, 2, 3), (3, 2, 1, 0)]
    assert sweeps[1].units[3] == [backward[1]]
    outside = [part for part in parts if isinstance(part, Record)]
    assert outside == [forward[0], forward[-1], backward[0], backward[-1]]


def test_what_comes_between_two_layers_is_of_the_first() -> None:
    """Inside of a pass nothing is outside; another micro-step is another pass."""
    between = made(9, OUTSIDE)
    first = [made(0, 0), between, made(1, 1), made(2, 2), made(3, 3)]
    again = [made(10 + layer, layer, micro_step=1) for layer in range(4)]
    one, other = read_sweeps([*first, *again], EVERY_LAYER)
    assert isinstance(one, Sweep)
    assert isinstance(other, Sweep)
    assert one.units[0] == [first[0], between]


@pytest.mark.parametrize("layers", [(0, 2, 1, 3), (0, 1, 2), (0, 1, 0, 1)])
def test_layers_that_do_not_follow_each_other_are_no_sweep(layers: tuple[int, ...]) -> None:
    """A period that is left out, that is missing, or that comes again."""
    with pytest.raises(Irregular, match="forward: periods"):
        read_sweeps([made(number, layer) for number, layer in enumerate(layers)], EVERY_LAYER)


def test_the_order_of_frees_that_follow_each_other_is_of_no_account() -> None:
    """It may be that of a hash table, so they are read by layer and age."""
    blocks = [made(layer, layer) for layer in range(4)]
    place = Place("optimizer_step", 0)
    gone = [Record(False, each.block, place) for each in blocks]
    after = made(9, OUTSIDE, "optimizer_step")
    orders = [[0, 1, 2, 3], [2, 0, 3, 1]]
    one, other = (
        read_sweeps([*blocks, *(gone[index] for index in order), after], EVERY_LAYER) for order in orders
    )
    assert one == other
