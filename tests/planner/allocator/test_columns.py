"""What is read off requests in one pass: worked out by hand,
and the compiled loops against those of Python.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.allocator import columns, compiled
from planner.allocator.columns import fullest, held_at, in_bytes, passing, shifted

LOOPS = [
    "python",
    pytest.param(
        "compiled",
        marks=pytest.mark.skipif(not compiled.is_compiled(), reason="installed without a compiler"),
    ),
]


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Iterator[str]:
    """The loop that reads."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(compiled, "in_bytes", lambda *_: None)
            patch.setattr(compiled, "shifted", lambda *_: None)
        yield request.param


def numbers(loop: str, values: list[int]) -> array[int] | list[int]:
    """Numbers as the loop takes them."""
    return array("q", values) if loop == "compiled" else values


def test_what_is_held_after_each_moment(loop: str) -> None:
    """Two of one kind and one of another; a moment before any event has none,
    and one may be asked for twice.
    """
    events, sizes = numbers(loop, [0, 1, ~0, 2]), numbers(loop, [10, 20, 5])
    assert held_at(events, sizes, array("B", [0, 1, 0]), 2, [-1, 1, 1, 3]) == [
        [0, 0],
        [10, 20],
        [10, 20],
        [5, 20],
    ]


def test_the_most_of_each_phase_counts_what_was_there_before(loop: str) -> None:
    """The second phase frees 10 of the 30 that it finds; the third is empty."""
    events, sizes = numbers(loop, [0, 1, ~0, 2]), numbers(loop, [10, 20, 5])
    assert fullest(events, sizes, [0, 2, 4]) == [30, 30, 25]


def test_halves_of_bytes_go_to_the_even_neighbour(loop: str) -> None:
    """As Python rounds: 0.5, 1.5 and 2.5 bytes; and so many of each unit."""
    del loop
    assert [*in_bytes(array("B", [0, 0, 0, 1]), array("d", [0.5, 1.5, 2.5, 4.0]), [1.0, 3.0])] == [
        0,
        2,
        2,
        12,
    ]


def test_events_of_slots_that_begin_later(loop: str) -> None:
    """Allocations move up, frees move down, and numbers that are no slots stay."""
    del loop
    events = array("q", [0, 3, ~0, 1000, 1001])
    assert shifted(events, 10, 1000) == array("q", [10, 13, ~10, 1000, 1001])
    assert events[0] == 0


def test_sizes_beyond_the_machines_are_lists(loop: str) -> None:
    """Bytes whose sum has more than 60 bits."""
    del loop
    assert in_bytes(array("B", [0, 0]), array("d", [2.0**59, 2.0**70]), [1.0]) == [2**59, 2**70]


@pytest.mark.skipif(not compiled.is_compiled(), reason="installed without a compiler")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.lists(st.floats(0, 1e9), min_size=1, max_size=40))
def test_both_loops_say_the_same(data: st.DataObject, unit_bytes: list[float]) -> None:
    """Random requests of three units and two kinds, read at random moments and in random phases."""
    slots = range(len(unit_bytes))
    units = array("B", data.draw(st.lists(st.integers(0, 2), min_size=len(slots), max_size=len(slots))))
    kinds = array("B", data.draw(st.lists(st.integers(0, 1), min_size=len(slots), max_size=len(slots))))
    sizes = columns.in_bytes(units, array("d", unit_bytes), [1.0, 1024.0, 0.3])
    assert isinstance(sizes, array)
    assert [*sizes] == [
        round(each * (1.0, 1024.0, 0.3)[unit]) for unit, each in zip(units, unit_bytes, strict=True)
    ]
    freed = data.draw(st.lists(st.sampled_from(slots), unique=True))
    events = [*slots, *(~slot for slot in freed)]
    moments = sorted(data.draw(st.lists(st.integers(-1, len(events) - 1), min_size=1)))
    begins = [0, *sorted(data.draw(st.lists(st.integers(0, len(events)))))]
    assert held_at(array("q", events), sizes, kinds, 2, moments) == held_at(
        events, [*sizes], kinds, 2, moments
    )
    assert fullest(array("q", events), sizes, begins) == fullest(events, [*sizes], begins)
    again = events[data.draw(st.integers(0, len(events))) :]
    by_array, by_list = (passing(each, len(slots)) for each in (array("q", again), again))
    assert [[*each] for each in by_array] == [[*each] for each in by_list]


def test_a_library_that_lacks_a_function_is_not_used() -> None:
    """One that was built before the function came: everything is read in Python then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(compiled._FUNCTIONS, "of_a_later_version", (None, []))
        compiled._library.cache_clear()
        assert not compiled.is_compiled()
        assert in_bytes(array("B", [0]), array("d", [2.0]), [3.0]) == [6]
    compiled._library.cache_clear()
