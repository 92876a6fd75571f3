"""Histories that PyTorch recorded become events; what cannot be one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.allocator.documents.history import events_from_history, reserved_timeline, settings_from_history
from planner.allocator.events import NO_BLOCK
from planner.allocator.replay import replay
from planner.errors import NotModelledError, UsageError
from planner.units import MIB


def entry(action: str, address: int, n_bytes: int, time_us: int, stream: int = 0) -> dict[str, Any]:
    """One entry of a history as PyTorch writes it."""
    frames = [{"filename": "model.py", "line": 3, "name": "forward"}] if action == "alloc" else []
    return {
        "action": action,
        "addr": address,
        "size": n_bytes,
        "stream": stream,
        "time_us": time_us,
        "frames": frames,
    }


def small_history() -> dict[str, Any]:
    """A history by hand: 1 byte, 3 MiB on another stream that waits before its free completes, and 12 MiB."""
    side = 94_000_000
    trace = [
        entry("segment_alloc", 0x1000_0000, 2 * MIB, 10),
        entry("alloc", 0x1000_0000, 1, 11),
        entry("segment_alloc", 0x2000_0000, 20 * MIB, 20, side),
        entry("alloc", 0x2000_0000, 3 * MIB, 21, side),
        entry("free_requested", 0x1000_0000, 1, 30),
        entry("free_completed", 0x1000_0000, 1, 30),
        entry("free_requested", 0x2000_0000, 3 * MIB, 31, side),
        entry("segment_alloc", 0x3000_0000, 12 * MIB, 40),
        entry("alloc", 0x3000_0000, 12 * MIB, 41),
        entry("free_completed", 0x2000_0000, 3 * MIB, 42, side),
        entry("alloc", 0x1000_0000, 700, 43),
        entry("segment_free", 0x2000_0000, 20 * MIB, 50, side),
        {"action": "oom", "device_free": 5, "size": 1, "stream": 0, "time_us": 60},
        entry("snapshot", 0, 0, 70),
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "expandable_segments": False}
    return {
        "segments": [{"segment_pool_id": [0, 0]}],
        "device_traces": [[], trace],
        "allocator_settings": settings,
    }


def test_a_history_becomes_events() -> None:
    """Requests stay, the allocator's own moves go; a free that waits is two events,
    streams and blocks get small numbers.
    """
    events = events_from_history(small_history(), device=1, phase_marks=[(0, "load"), (30, "forward")])
    assert [(event.action, event.block, event.n_bytes, event.stream, event.phase) for event in events] == [
        ("alloc", 1, 1, 0, "load"),
        ("alloc", 3, 3 * MIB, 1, "load"),
        ("free", 1, 1, 0, "forward"),
        ("free_requested", 3, 3 * MIB, 1, "forward"),
        ("alloc", 8, 12 * MIB, 0, "forward"),
        ("free", 3, 3 * MIB, 1, "forward"),
        ("alloc", 10, 700, 0, "forward"),
        ("empty_cache", NO_BLOCK, 0, 0, "forward"),
    ]
    assert events[0].op == "forward"
    assert events_from_history(small_history(), device=0) == []


def test_a_replayed_history_reserves_what_was_recorded() -> None:
    """The replay of the history peaks where its own segment entries do, and the history survives JSON."""
    history = json.loads(json.dumps(small_history()))
    recorded = reserved_timeline(history, device=1)
    assert [n // MIB for n in recorded] == [2, 22, 34, 14]
    settings = settings_from_history(history)
    assert settings.max_split_bytes == 64 * MIB
    assert replay(events_from_history(history, device=1), settings).peak_reserved_bytes == max(recorded)


def test_a_full_card_gives_its_cache_back_and_a_program_empties_it() -> None:
    """Segments go before one that finds no room beside them: that is the allocator's. Where the card has
    held more, or where nothing follows, the program gave them back.
    """
    first, second = entry("segment_alloc", 0, 40 * MIB, 1), entry("segment_alloc", 1 << 30, 60 * MIB, 3)
    given_back, other = entry("segment_free", 0, 40 * MIB, 2), entry("segment_free", 1 << 30, 60 * MIB, 4)
    for trace, expected in (
        ([first, given_back, second], 0),
        ([first, given_back, first, second], 1),
        ([first, second, given_back, other], 1),
        ([entry("segment_map", 0, 40 * MIB, 1), entry("segment_unmap", 0, 20 * MIB, 2)], 1),
    ):
        events = events_from_history({"device_traces": [trace]})
        assert [event.action for event in events] == ["empty_cache"] * expected


def test_pages_of_expandable_segments_count_as_reserved() -> None:
    """``segment_map`` and ``segment_unmap`` move the recorded bytes as segments do."""
    trace = [entry("segment_map", 0, 40 * MIB, 1), entry("segment_unmap", 0, 20 * MIB, 2)]
    assert reserved_timeline({"device_traces": [trace]}) == [40 * MIB, 20 * MIB]


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ([entry("free_requested", 1, 1, 1)], "entry 0: address 1 is freed but was never allocated"),
        ([entry("alloc", 1, 1, 1), entry("free_completed", 1, 1, 1)], "entry 1: address 1 is freed"),
        ([entry("alloc", 1, 1, 1), entry("alloc", 1, 1, 1)], "entry 1: address 1 is allocated twice"),
        ([entry("alloc", 1, -1, 1)], "'size' must be"),
        ([{**entry("alloc", 1, 1, 1), "addr": "1"}], "'addr' must be"),
        ([entry("defragment", 1, 1, 1)], "unknown action 'defragment'"),
        (["alloc"], "unknown action"),
    ],
)
def test_a_history_that_cannot_be_is_refused(trace: list[Any], message: str) -> None:
    """Truncated, malformed and unknown entries are named by number, never skipped."""
    with pytest.raises(UsageError, match=message):
        events_from_history({"device_traces": [trace]})


def test_what_is_no_history_is_refused() -> None:
    """No traces, a device that is not there, segments freed that never were, settings that are missing,
    marks out of order.
    """
    with pytest.raises(UsageError, match="no device_traces"):
        events_from_history({"segments": []})
    with pytest.raises(UsageError, match="no device 2"):
        events_from_history(small_history(), device=2)
    with pytest.raises(UsageError, match="more is released"):
        reserved_timeline({"device_traces": [[entry("segment_free", 1, 1, 1)]]})
    with pytest.raises(UsageError, match="no allocator_settings"):
        settings_from_history({"device_traces": []})
    with pytest.raises(UsageError, match="order of time"):
        events_from_history(small_history(), device=1, phase_marks=[(30, "forward"), (0, "load")])


def test_private_pools_are_refused() -> None:
    """CUDA graphs keep memory in pools of their own, which are not modelled:
    no number is better than a wrong one.
    """
    history = small_history()
    history["segments"] = [{"segment_pool_id": [1, 0]}]
    with pytest.raises(NotModelledError, match="private memory pools"):
        events_from_history(history, device=1)
    with pytest.raises(NotModelledError, match="private memory pools"):
        events_from_history({"device_traces": [[{**entry("alloc", 1, 1, 1), "pool_id": (0, 2)}]]})
