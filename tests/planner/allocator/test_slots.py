"""The replay in one loop against the model of the allocator made of objects,
and its answers under a limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.compiled import is_compiled
from planner.allocator.slots import SlotEvents, least_limit, replay_again, replay_slots
from planner.units import MIB

SIZES = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 4 * MIB),
    st.sampled_from((MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 21 * MIB + 3, 300 * MIB)),
)


@st.composite
def programs(draw: st.DrawFn) -> SlotEvents:
    """Allocations of drawn sizes on two streams, some of them freed later, in two phases."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=60))
    streams = draw(st.lists(st.integers(0, 1), min_size=len(sizes), max_size=len(sizes)))
    events: list[int] = []
    live: list[int] = []
    for slot in range(len(sizes)):
        events.append(slot)
        live.append(slot)
        for _ in range(draw(st.integers(0, 2))):
            if live:
                events.append(~live.pop(draw(st.integers(0, len(live) - 1))))
    return SlotEvents(events, sizes, streams, [0, draw(st.integers(0, len(events)))])


def by_objects(program: SlotEvents, limit_bytes: int | None) -> tuple[int, int, int, int | None]:
    """(most allocated, most reserved, retries, slot that failed) of the allocator made of objects."""
    allocator = CachingAllocator(limit_bytes=limit_bytes)
    live = {}
    for event in program.events:
        if event >= 0 and program.sizes[event]:
            block = allocator.malloc(program.sizes[event], program.streams[event])
            if block is None:
                return (
                    allocator.peak_allocated_bytes,
                    allocator.peak_reserved_bytes,
                    allocator.n_retries,
                    event,
                )
            live[event] = block
        elif event < 0 and ~event in live:
            allocator.free(live.pop(~event))
    return allocator.peak_allocated_bytes, allocator.peak_reserved_bytes, allocator.n_retries, None


LOOPS = [
    "python",
    pytest.param(
        "compiled", marks=pytest.mark.skipif(not is_compiled(), reason="installed without a compiler")
    ),
]


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Iterator[str]:
    """The loop that replays."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr("planner.allocator.slots.packed", lambda *_: None)
        yield request.param


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs(), limit_bytes=st.one_of(st.none(), st.integers(2 * MIB, 800 * MIB)))
def test_either_loop_does_what_the_objects_do(
    loop: str, program: SlotEvents, limit_bytes: int | None
) -> None:
    """The same peaks, retries and failed request, with and without a limit."""
    done = replay_slots(program, limit_bytes)
    failed = None if done.failure is None else program.events[done.failure.event]
    assert (done.allocated_bytes, done.reserved_bytes, done.n_retries, failed) == by_objects(
        program, limit_bytes
    )


@pytest.mark.skipif(not is_compiled(), reason="installed without a compiler")
@given(programs(), st.one_of(st.none(), st.integers(2 * MIB, 800 * MIB)))
def test_both_loops_say_the_same(program: SlotEvents, limit_bytes: int | None) -> None:
    """Every phase, and all that is told of a failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.allocator.slots.packed", lambda *_: None)
        by_python = replay_slots(program, limit_bytes)
    assert replay_slots(program, limit_bytes) == by_python


@pytest.mark.skipif(not is_compiled(), reason="installed without a compiler")
@pytest.mark.parametrize("share_of_reserved", [None, 0.9, 0.6])
def test_thousands_of_free_blocks_stay_in_order(share_of_reserved: float | None) -> None:
    """Small and large blocks, freed in an order of their own, taken again in another one;
    the cache given back between, and cards that are too small for what is cached.
    """
    n_slots, mixed = 8_000, 104_729
    sizes = [(1 + slot * mixed % 4_001) * 512 for slot in range(n_slots)]
    shuffled = sorted(range(0, n_slots, 2), key=lambda slot: slot * mixed % n_slots)
    events = [
        *range(n_slots),
        *(~slot for slot in shuffled),
        *shuffled[::3],
        *(~slot for slot in range(1, n_slots, 2)),
    ]
    program = SlotEvents(events, sizes, (), [0, n_slots, n_slots + len(shuffled)], frozenset([2]))
    limit_bytes = share_of_reserved and int(share_of_reserved * replay_slots(program).reserved_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.allocator.slots.packed", lambda *_: None)
        by_python = replay_slots(program, limit_bytes)
    assert replay_slots(program, limit_bytes) == by_python


def test_numbers_beyond_the_machines_are_replayed_in_python() -> None:
    """Sizes whose sum has more than 60 bits."""
    assert replay_slots(SlotEvents([0, 1], [1 << 60, 1 << 70], (), [0])).allocated_bytes == (1 << 60) + (
        1 << 70
    )


@given(programs())
def test_the_least_limit_is_enough_and_a_little_less_is_not(program: SlotEvents) -> None:
    """Under the minimum the program ends; a step below it, or below what is allocated, it does not."""
    done = replay_slots(program)
    least = least_limit(program, done, MIB)
    assert replay_slots(program, least).failure is None
    assert done.allocated_bytes <= least <= done.reserved_bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs(), limit_bytes=st.integers(0, 800 * MIB))
def test_limits_that_share_their_beginning_are_tried_as_from_the_start(
    loop: str, program: SlotEvents, limit_bytes: int
) -> None:
    """The minimum is what whole replays under each limit that is tried lead to."""
    done = replay_slots(program)
    low, high = done.allocated_bytes, done.reserved_bytes
    guess = limit_bytes if low <= limit_bytes < high else low + MIB
    while high - low > MIB:
        low, high = (low, guess) if replay_slots(program, guess).failure is None else (guess, high)
        guess = (low + high) // 2
    assert least_limit(program, done, MIB, limit_bytes) == high


def test_the_peak_of_a_phase_is_found_at_its_event() -> None:
    """Most is allocated after the second allocation; the next phase begins with what is left."""
    program = SlotEvents([0, 1, ~1, 2], [2 * MIB, 4 * MIB, MIB], (), [0, 3])
    first, second = replay_slots(program).phases
    assert (first.allocated_bytes, first.peak_event) == (6 * MIB, 1)
    assert (second.allocated_bytes, second.peak_event) == (3 * MIB, 3)


def test_a_failure_tells_what_was_asked_and_what_was_free() -> None:
    """30 MiB are cached in two pieces with something between them,
    so 20 MiB more find no room under 60 MiB.
    """
    sizes = [12 * MIB, 12 * MIB, 12 * MIB, 30 * MIB]
    failure = replay_slots(SlotEvents([0, 1, 2, ~0, ~2, 3], sizes, (), [0]), 40 * MIB).failure
    assert failure is not None
    assert (failure.event, failure.n_bytes) == (5, 30 * MIB)
    assert (failure.allocated_bytes, failure.reserved_bytes, failure.free_blocks) == (12 * MIB, 12 * MIB, 0)


def test_longer_batches_reserve_more_and_shorter_ones_nothing() -> None:
    """A batch that is longer than all before it finds no block of its size; a shorter one does."""
    program = SlotEvents([0, 1, ~1], [2 * MIB, 100 * MIB], (), [0])
    grown = replay_again(program, 1, [[2 * MIB, size * MIB] for size in (40, 30, 60, 50)])
    assert grown == [each * MIB + 20 * MIB for each in (40, 40, 100, 100)]


def test_a_block_is_split_where_its_rest_can_be_used(loop: str) -> None:
    """A small block from a rest of 512 bytes on, a large one from more than 1 MiB on.

    Of 1,024 free bytes 512 are taken: what is allocated is the guard of 512 and these.  Of 12 MiB, 11 are
    asked for and all are taken.
    """
    small = SlotEvents([0, 1, ~0, 2], [1024, 512, 512], [], [0, 3])
    assert replay_slots(small).phases[1].allocated_bytes == 1024
    large = SlotEvents([0, ~0, 1], [12 * MIB, 11 * MIB], [], [0, 2])
    assert replay_slots(large).phases[1].allocated_bytes == 12 * MIB
    split = SlotEvents([0, ~0, 1], [12 * MIB, 11 * MIB - 512], [], [0, 2])
    assert replay_slots(split).phases[1].allocated_bytes == 11 * MIB - 512
