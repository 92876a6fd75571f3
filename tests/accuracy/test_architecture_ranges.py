"""``data/unmodelled.toml`` is what the catalog's architectures say today."""

from __future__ import annotations

import pytest

from planner.catalog.unmodelled import Range, read_ranges
from tests.accuracy.architecture_ranges import (
    METHODS,
    Compared,
    Key,
    all_compared,
    as_toml,
    compared,
    held_out,
    known_models,
    range_of,
)


@pytest.mark.every(3)
@pytest.mark.parametrize("stored", read_ranges().ranges, ids=lambda each: "-".join(map(str, each.key)))
def test_both_ends_are_what_their_architectures_need(stored: Range) -> None:
    """Each end is computed anew from the model that it names: after a change of the program, ``make ranges``
    writes it again.
    """
    method = next(name for name, training in METHODS.items() if training == stored.training)
    names, known = dict.fromkeys((stored.lowest, stored.highest)), known_models()
    found = [compared(name, known[name], method, stored.checkpointing) for name in names]
    again = range_of(stored.key, [each for each in found if each is not None])
    assert (again.low, again.high) == (stored.low, stored.high)


@pytest.mark.slow
def test_no_architecture_is_beyond_the_ends() -> None:
    """All of them, computed anew; nine of ten dense ones lie within the ends of the others."""
    found = all_compared()
    stored = {each.key: each for each in read_ranges().ranges}
    assert {key: range_of(key, known) for key, known in found.items()} == stored
    inside, n = held_out(found)["dense"]
    assert inside >= 0.9 * n


def test_the_ends_are_rounded_outwards_and_what_stands_alone_is_held_out() -> None:
    """Whoever sets an end is outside of the ends of the others."""
    key: Key = ("dense", "full", True)
    known = [Compared("low", 0.707, 1.0), Compared("mid", 0.8, 1.1), Compared("high", 0.9, 1.211)]
    made = range_of(key, known)
    assert (made.low, made.lowest, made.high, made.highest, made.n) == (0.7, "low", 1.22, "high", 3)
    assert held_out({key: known}) == {"dense": (1, 3)}
    assert 'lowest = "low"' in as_toml([made])
