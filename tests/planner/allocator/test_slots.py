"""The replay in one loop against the model of the allocator made of objects,
and its answers under a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.columns import passing
from planner.allocator.compiled import HOST_WAITS, MOST_LAG, is_compiled
from planner.allocator.settings import AllocatorSettings
from planner.allocator.slots import SlotEvents, least_limit, replay_parts, replay_slots
from planner.errors import NotModelledError
from planner.units import GIB, MIB

SIZES = st.one_of(
    st.just(0),
    st.integers(0, 4096),
    st.integers(1, 4 * MIB),
    st.sampled_from((MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 21 * MIB + 3, 300 * MIB)),
)


SETTINGS = st.builds(
    AllocatorSettings,
    expandable_segments=st.booleans(),
    roundup_divisions=st.sampled_from([(), (), (16,) * 16, (8, 8, 1, 2) * 4]),
)


@st.composite
def programs(draw: st.DrawFn) -> SlotEvents:
    """Allocations of drawn sizes on two streams, some of them freed later, in two phases;
    some may be used again only after so many more are freed, or when the host waits, and segments may grow.
    """
    sizes = draw(st.lists(SIZES, min_size=1, max_size=60))
    streams, lags = (
        draw(st.lists(st.integers(0, most), min_size=len(sizes), max_size=len(sizes))) for most in (1, 3)
    )
    if draw(st.booleans()):
        lags = [lag if size else HOST_WAITS - lag for size, lag in zip(sizes, lags, strict=True)]
    events: list[int] = []
    live: list[int] = []
    for slot in range(len(sizes)):
        events.append(slot)
        live.append(slot)
        for _ in range(draw(st.integers(0, 2))):
            if live:
                events.append(~live.pop(draw(st.integers(0, len(live) - 1))))
    second = draw(st.integers(0, len(events)))
    empties = draw(st.sampled_from((frozenset[int](), frozenset([second]))))
    return SlotEvents(events, sizes, streams, [0, second], empties, lags, draw(SETTINGS))


def by_objects(program: SlotEvents, limit_bytes: int | None) -> tuple[int, int, int, int | None]:
    """(most allocated, most reserved, retries, slot that failed) of the allocator made of objects."""
    allocator = CachingAllocator(program.settings, limit_bytes)
    live = {}
    waiting: dict[tuple[int, bool], list[int]] = {}
    for index, event in enumerate(program.events):
        if index in program.empties:
            allocator.empty_cache()
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
            block, lag = live.pop(~event), program.lags[~event]
            if not lag:
                allocator.free(block)
                continue
            is_small = allocator.rounded(program.sizes[~event]) <= MIB
            tickets = waiting.setdefault((program.streams[~event], is_small), [])
            tickets.append(allocator.request_free(block))
            while len(tickets) > lag:
                allocator.complete_free(tickets.pop(0))
        elif event < 0 and program.lags[~event] >= HOST_WAITS - MOST_LAG:
            for tickets in waiting.values():
                while len(tickets) > HOST_WAITS - program.lags[~event]:
                    allocator.complete_free(tickets.pop(0))
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
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("share_of_reserved", [None, 0.9, 0.6])
def test_thousands_of_free_blocks_stay_in_order(share_of_reserved: float | None, grows: bool) -> None:
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
    begins, settings = [0, n_slots, n_slots + len(shuffled)], AllocatorSettings(expandable_segments=grows)
    program = SlotEvents(events, sizes, (), begins, frozenset(begins[2:]), settings=settings)
    reserved = replay_slots(program).reserved_bytes
    limit_bytes = None if share_of_reserved is None else int(share_of_reserved * reserved)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.allocator.slots.packed", lambda *_: None)
        by_python = replay_slots(program, limit_bytes)
    assert replay_slots(program, limit_bytes) == by_python


def test_what_another_stream_uses_is_cached_late_and_given_back_on_a_full_card(loop: str) -> None:
    """Two of three equal blocks wait, so that the fourth is the first one again;
    a card with room for three waits for them.
    """
    del loop
    events = [0, ~0, 1, ~1, 2, ~2, 3]
    program = SlotEvents(events, [20 * MIB] * 4, [0] * 4, [0], lags=[2] * 4)
    done = replay_slots(program)
    assert (done.allocated_bytes, done.reserved_bytes) == (20 * MIB, 60 * MIB)
    full = replay_slots(program, 40 * MIB)
    assert (full.reserved_bytes, full.n_retries, full.failure) == (40 * MIB, 1, None)


def test_what_another_stream_uses_comes_back_when_the_host_waits(loop: str) -> None:
    """The last block is then the first one again, also in a part that is replayed by itself."""
    del loop
    program = SlotEvents([0, ~0, 1, ~1, 2], [20 * MIB, 0, 20 * MIB], [0] * 3, [0], lags=[1, HOST_WAITS, 1])
    assert replay_slots(program).reserved_bytes == 20 * MIB
    assert replay_slots(replace(program, lags=[1] * 3)).reserved_bytes == 40 * MIB
    assert least_limit(program, replay_slots(program), MIB) == 20 * MIB
    parts = [(program.events[:2], program.sizes), (program.events[2:], program.sizes)]
    assert replay_parts(program, parts) == [20 * MIB, 20 * MIB]


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


def step_again(n_repeats: int) -> SlotEvents:
    """Two steps, of which the second may come again, or so many more written out.  One block of each is
    freed in the next.
    """
    sizes, events, begins = [30, 45, 30, 26], [], []
    for step in range(2 + n_repeats):
        begins.append(len(events))
        base = 4 * step
        ended = [] if step == 0 else [~(base - 2)]
        events += [base, base + 3, base + 2, ~(base + 3), base + 1, *ended, ~(base + 1), ~base]
    again = (begins[1], len(events)) if n_repeats == 0 else (0, 0)
    return SlotEvents(events, [size * MIB for size in sizes] * len(begins), (), begins, again=again)


def test_a_step_that_comes_again_ends_every_time(loop: str) -> None:
    """Under a limit that is enough for two steps, blocks of a third find no room: it is repeated."""
    program, written = step_again(0), step_again(8)
    done = replay_slots(program)
    once = least_limit(replace(program, again=(0, 0)), done, MIB)
    least = least_limit(program, done, MIB)
    assert once + MIB < least
    assert least == pytest.approx(least_limit(written, replay_slots(written), MIB), abs=MIB)
    assert least_limit(program, done, MIB, once + MIB) == once + MIB
    failure = replay_slots(program, once).failure
    assert failure is not None
    assert program.again[0] <= failure.event < program.again[1]
    assert program.sizes[program.events[failure.event]] == failure.n_bytes


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


def grown(program: SlotEvents, start: int, sizes: list[list[int]]) -> list[int]:
    """Bytes reserved after ``program`` with the first of ``sizes``,
    and after its events from ``start`` on once more for each of the others.
    """
    again, *_ = passing(program.events[start:], len(program.sizes))
    return replay_parts(program, [(program.events, sizes[0]), *((again, each) for each in sizes[1:])])


def test_longer_batches_reserve_more_and_shorter_ones_nothing() -> None:
    """A batch that is longer than all before it finds no block of its size; a shorter one does."""
    program = SlotEvents([0, 1, ~1], [2 * MIB, 100 * MIB], (), [0])
    reserved = grown(program, 1, [[2 * MIB, size * MIB] for size in (40, 30, 60, 50)])
    assert reserved == [each * MIB + 20 * MIB for each in (40, 40, 100, 100)]


def in_one_piece(program: SlotEvents, parts: list[list[int]], cut: int) -> SlotEvents:
    """``program`` with the sizes of each part in turn, its events cut in two at ``cut``, as one program: each
    allocation has a slot of its own, with the size that it has in its part.
    """
    events: list[int] = []
    columns: list[tuple[int, int, int]] = []
    live: dict[int, int] = {}
    for sizes in parts:
        for place, event in enumerate(program.events):
            slot = event if event >= 0 else ~event
            part = sizes if place < cut else parts[-1]
            if event >= 0:
                live[slot] = len(columns)
                columns.append((part[slot], program.streams[slot], program.lags[slot]))
            events.append(live[slot] if event >= 0 else ~live[slot])
    asked, streams, lags = ([*column] for column in zip(*columns, strict=True))
    return SlotEvents(events, asked, streams, [0], frozenset(), lags, program.settings)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs(), data=st.data())
def test_what_is_let_go_is_what_was_allocated_in_a_batch_of_another_length(
    loop: str, program: SlotEvents, data: st.DataObject
) -> None:
    """A slot may be of another size class, or of none, in the part that lets it go: replayed in parts is
    reserved what one program with a slot for each allocation reserves.
    """
    # What is left goes, so that the next part may allocate it; waits of the host are not sizes.
    left = [slot for slot in range(len(program.sizes)) if ~slot not in program.events]
    events = [*program.events, *(~slot for slot in left)]
    program = replace(program, events=events, lags=[lag if lag < 4 else 0 for lag in program.lags])
    others = [
        data.draw(st.lists(SIZES, min_size=len(left_over), max_size=len(left_over)))
        for left_over in [program.sizes] * 2
    ]
    sizes = [list(program.sizes), *others]
    cut = data.draw(st.integers(0, len(events)))
    parts = [
        (part, each if first else sizes[-1])
        for each in sizes
        for first, part in ((True, events[:cut]), (False, events[cut:]))
    ]
    whole = replay_slots(in_one_piece(program, sizes, cut))
    assert replay_parts(program, parts)[-1] <= whole.reserved_bytes
    assert max(replay_parts(program, parts)) == whole.reserved_bytes


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


TIB = 1024 * GIB
GROWING = AllocatorSettings(expandable_segments=True)


def test_a_growing_segment_gets_pages_behind_what_is_free(loop: str) -> None:
    """90 MiB are five pages of 20 MiB, of which 10 MiB are free.  30 MiB take these and one page more.

    Where segments are plain, they are reserved beside the 90 MiB.
    """
    del loop
    program = SlotEvents([0, 1], [90 * MIB, 30 * MIB], (), [0], settings=GROWING)
    assert replay_slots(program).reserved_bytes == 120 * MIB
    plain = SlotEvents([0, 1, ~1, 2], [90 * MIB, 30 * MIB, 50 * MIB], (), [0])
    grows = SlotEvents(plain.events, plain.sizes, (), [0], settings=GROWING)
    assert replay_slots(plain).reserved_bytes == 170 * MIB
    assert replay_slots(grows).reserved_bytes == 140 * MIB


def test_pages_of_free_blocks_are_unmapped_and_used_elsewhere(loop: str) -> None:
    """Two blocks of 50 MiB with 10 MiB between: freed, they hold two and two whole pages of 20 MiB, which
    a full card maps behind 80 MiB.  One page more than these is not there.
    """
    del loop
    events = [0, 1, 2, ~0, ~2, 3]
    sizes = [50 * MIB, 10 * MIB, 50 * MIB, 80 * MIB]
    done = replay_slots(SlotEvents(events, sizes, (), [0], settings=GROWING), 120 * MIB)
    assert (done.reserved_bytes, done.n_retries, done.failure) == (120 * MIB, 1, None)
    sizes[3] = 100 * MIB + 512
    failure = replay_slots(SlotEvents(events, sizes, (), [0], settings=GROWING), 120 * MIB).failure
    assert failure is not None
    assert failure.n_bytes == 100 * MIB + 512


def test_a_longer_batch_makes_a_growing_segment_longer(loop: str) -> None:
    """40, 30, 60 and 50 MiB one after the other behind 2 MiB:
    as many pages of 20 MiB as the longest so far needs.
    """
    del loop
    program = SlotEvents([0, 1, ~1], [2 * MIB, 100 * MIB], (), [0], settings=GROWING)
    reserved = grown(program, 1, [[2 * MIB, size * MIB] for size in (40, 30, 60, 50)])
    assert reserved == [each * MIB for each in (60, 60, 80, 80)]


def test_what_went_once_does_not_go_again(loop: str) -> None:
    """A block of before goes and one that stays takes its place, as DDP's buckets do; then 40, 60 and 80 MiB
    come and go, each longer than what is free.
    """
    del loop
    program = SlotEvents([0, ~0, 1, 2, ~2], [0, 0, 0], (), [0])
    reserved = grown(program, 1, [[100 * MIB, 100 * MIB, size * MIB] for size in (40, 60, 80)])
    assert reserved == [each * MIB for each in (140, 200, 280)]


def test_a_request_above_any_card_is_served_where_there_is_no_limit(loop: str) -> None:
    """Scores of a million tokens take more than the addresses that a growing segment has at first: 100 TiB
    are as many pages of 20 MiB as there are for them, and a card with a limit refuses them.
    """
    del loop
    program = SlotEvents([0, 1, ~0, 2], [100 * TIB, MIB, 100 * TIB], (), [0], settings=GROWING)
    done = replay_slots(program)
    assert (done.failure, done.allocated_bytes) == (None, 100 * TIB + MIB)
    pages = -(-100 * TIB // (20 * MIB)) * 20 * MIB
    assert done.reserved_bytes == pages + 2 * MIB
    assert by_objects(replace(program, streams=[0] * 3, lags=[0] * 3), None)[1] == done.reserved_bytes
    assert replay_slots(program, 80 * GIB).failure is not None
    assert least_limit(program, done, GIB) <= done.reserved_bytes


def test_sizes_are_rounded_before_they_are_asked_for(loop: str) -> None:
    """From 64 MiB to 128 MiB in steps of 4 MiB where the way is divided by 16;
    a failure says what the program asked for.
    """
    del loop
    settings = AllocatorSettings(roundup_divisions=(16,) * 16)
    program = SlotEvents([0], [65 * MIB], (), [0], settings=settings)
    assert replay_slots(program).allocated_bytes == 68 * MIB
    failure = replay_slots(program, 66 * MIB).failure
    assert failure is not None
    assert failure.n_bytes == 65 * MIB


def test_settings_that_the_loop_does_not_follow_are_refused() -> None:
    """Segments of another size."""
    with pytest.raises(NotModelledError, match="expandable_segments"):
        SlotEvents([0], [MIB], (), [0], settings=AllocatorSettings(large_segment_bytes=40 * MIB))


@pytest.mark.parametrize(("most", "reserved"), [(None, 60), (40, 90), (80, 60)])
def test_a_block_above_the_largest_that_is_split_is_kept_whole(most: int | None, reserved: int) -> None:
    """A request of 30 MiB does not take from one of 60, so the card has to have both."""
    settings = AllocatorSettings(max_split_bytes=None if most is None else most * MIB)
    program = SlotEvents([0, ~0, 1], [60 * MIB, 30 * MIB], (), [0], settings=settings)
    done = replay_slots(program)
    assert done.reserved_bytes == reserved * MIB
    # On a card that has no room for both, the cache is given back.
    assert least_limit(program, done, MIB) == pytest.approx(60 * MIB, abs=MIB)
