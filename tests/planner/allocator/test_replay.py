"""A stream of events replayed: peaks by phase, an emptied cache, streams that cannot be, and its speed."""

from __future__ import annotations

import random
import time

import pytest

from planner.allocator.events import (
    NO_BLOCK,
    AllocEvent,
    allocated_timeline,
)
from planner.allocator.replay import replay
from planner.errors import UsageError
from planner.units import MIB
from tests.planner.allocator.streams import stream_of


def test_peaks_by_phase_start_from_what_is_held() -> None:
    """Each phase counts what it began with; a phase that comes again keeps its higher peak;
    phases are in order of time.
    """
    events = [
        *stream_of(("alloc", 0, 30), phase="load"),
        *stream_of(("alloc", 1, 20), ("free", 1), phase="forward"),
        *stream_of(("free", 0), ("alloc", 2, 12), phase="backward"),
        *stream_of(("alloc", 3, 14), phase="forward"),
    ]
    result = replay(events)
    # Best fit splits the 12 MiB off the cached 20,
    # so the 14 MiB after them come off the cached 30 and nothing is reserved.
    assert [
        (peak.phase, peak.allocated_bytes // MIB, peak.reserved_bytes // MIB) for peak in result.phases
    ] == [
        ("load", 30, 30),
        ("forward", 50, 50),
        ("backward", 30, 50),
    ]
    assert (result.peak_allocated_event, result.peak_reserved_event) == (1, 1)


def test_an_emptied_cache_is_replayed() -> None:
    """The cached 30 MiB go back to the card, so that the 20 after them need a segment; what another stream
    still uses is waited for, and its free that follows changes nothing.
    """
    made = stream_of(("alloc", 0, 30), ("alloc", 1, 40), ("free", 0))
    emptied, after = stream_of(("empty_cache", NO_BLOCK)), stream_of(("alloc", 2, 20))
    result = replay([*made, *emptied, *after])
    assert [each // MIB for each in result.reserved_timeline] == [30, 70, 70, 40, 60]
    assert [each // MIB for each in result.held_bytes] == [30, 40, 0, 0, 20]
    assert allocated_timeline([*made, *emptied, *after])[-2:] == [40 * MIB, 60 * MIB]
    assert replay([*made, *after]).reserved_timeline[-1] == 70 * MIB
    late = stream_of(("alloc", 0, 30), ("free_requested", 0), ("empty_cache", NO_BLOCK), ("free", 0))
    assert [each // MIB for each in replay(late).reserved_timeline] == [30, 30, 0, 0]


def test_an_empty_stream_holds_nothing() -> None:
    """No events, no peaks, no phases, and it fits on any card."""
    result = replay([], limit_bytes=0)
    assert (result.peak_reserved_bytes, result.phases, result.outcome) == (0, (), "fits")
    assert (result.peak_allocated_event, result.peak_reserved_event) == (None, None)


def test_an_allocation_of_no_bytes_takes_nothing() -> None:
    """PyTorch keeps no block for an empty tensor; its free is accepted, deferred or not."""
    events = stream_of(("alloc", 0, 0), ("alloc", 1, 0), ("free", 0), ("free_requested", 1), ("free", 1))
    result = replay(events, limit_bytes=0)
    assert (result.outcome, result.peak_reserved_bytes, len(result.held_bytes)) == ("fits", 0, 5)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (stream_of(("free", 3)), "event 0: block 3 is freed but not allocated"),
        (stream_of(("alloc", 3, 1), ("alloc", 3, 1)), "event 1: block 3 is allocated twice"),
        (stream_of(("alloc", 3, 1), ("free", 3), ("free", 3)), "event 2: block 3 is freed but not allocated"),
        (
            stream_of(("alloc", 3, 1), ("free_requested", 3), ("alloc", 3, 1)),
            "event 2: block 3 is allocated twice",
        ),
        (
            stream_of(("alloc", 3, 1), ("free_requested", 3), ("free_requested", 3)),
            "event 2: block 3 is freed but not allocated",
        ),
    ],
)
def test_an_impossible_stream_is_refused(events: list[AllocEvent], message: str) -> None:
    """The replay and the plain walk name the event that cannot be."""
    for walk in (replay, allocated_timeline):
        with pytest.raises(UsageError, match=message):
            walk(events)


def test_a_negative_size_is_refused() -> None:
    """A size below zero is a broken trace, not a small block."""
    with pytest.raises(UsageError, match="negative"):
        replay([AllocEvent("alloc", 0, -1)])


def test_two_hundred_thousand_events_a_second() -> None:
    """A replay is fast enough to be run for many limits and settings."""
    draw = random.Random(1)
    events: list[AllocEvent] = []
    live: list[int] = []
    for index in range(40_000):
        if len(live) > 500 or (live and draw.random() < 0.45):
            events.append(AllocEvent("free", live.pop(draw.randrange(len(live))), 0))
        else:
            events.append(AllocEvent("alloc", index, draw.randrange(1, 8 * MIB)))
            live.append(index)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        replay(events)
        seconds.append(time.process_time() - start)
    assert len(events) / min(seconds) > 200_000
