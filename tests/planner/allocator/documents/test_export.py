"""The snapshot that PyTorch's memory visualiser opens."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from planner.allocator.documents.export import LoggingAllocator, snapshot_of
from planner.allocator.documents.history import events_from_history, reserved_timeline, settings_from_history
from planner.allocator.events import NO_BLOCK, AllocEvent
from planner.allocator.replay import replay
from planner.allocator.settings import parse_settings
from planner.units import KIB, MIB
from tests.extras import needs
from tests.planner.allocator.documents.made import EVENTS, alloc, free

# The same with a block of another stream that the program lets go of before that stream is done with it.
STREAMS = [
    *EVENTS,
    alloc(6, 24 * MIB, "backward", "gathered_parameters", stream=1),
    free(6, 24 * MIB, "backward", "free_requested", stream=1),
    alloc(7, 3 * MIB, "optimizer_step", "optimizer_states", stream=1),
    free(6, 24 * MIB, "optimizer_step", stream=1),
    alloc(8, 2 * KIB, "optimizer_step", "other_temporaries"),
    alloc(9, 0, "optimizer_step", "other_temporaries"),
    free(9, 0, "optimizer_step"),
]


def test_an_exported_snapshot_reads_back_as_the_same_requests() -> None:
    """The importer of recorded histories finds in the export what was replayed: sizes, streams, order,
    and what is reserved.
    """
    text = "max_split_size_mb:64"
    snapshot = json.loads(json.dumps(snapshot_of(STREAMS, text)))
    marks = [
        (each["time_us"], each["name"])
        for each in snapshot["external_annotations"]
        if each["stage"] == "START"
    ]
    back = events_from_history(snapshot, phase_marks=marks)
    kept = [each for each in STREAMS if each.n_bytes]
    assert [(e.action, e.n_bytes, e.stream, e.phase) for e in back] == [
        (e.action, e.n_bytes, e.stream, e.phase) for e in kept
    ]
    assert [e.op for e in back if e.action == "alloc"] == [e.op for e in kept if e.action == "alloc"]
    assert settings_from_history(snapshot).max_split_bytes == 64 * MIB
    result = replay(STREAMS)
    assert max(reserved_timeline(snapshot)) == result.peak_reserved_bytes


def test_pages_of_expandable_segments_are_mapped_and_unmapped() -> None:
    """What the replay reserves is what the entries map, at addresses that nothing else has;
    an emptied cache unmaps it.
    """
    text = "expandable_segments:True"
    snapshot = json.loads(json.dumps(snapshot_of(STREAMS, text)))
    assert max(reserved_timeline(snapshot)) == replay(STREAMS, parse_settings(text)).peak_reserved_bytes
    ranges = sorted(
        (e["addr"], e["size"]) for e in snapshot["device_traces"][0] if e["action"] == "segment_map"
    )
    assert all(start + size <= after for (start, size), (after, _) in pairwise(ranges))
    allocator = LoggingAllocator(parse_settings(text))
    block = allocator.malloc(30 * MIB)
    assert block is not None
    allocator.free(block)
    allocator.empty_cache()
    assert [(action, size) for action, _, size, _ in allocator.log] == [
        ("segment_map", 40 * MIB),
        ("segment_unmap", 40 * MIB),
    ]


def test_an_emptied_cache_frees_segments_in_the_snapshot() -> None:
    """As torch's own record has it: a segment is freed, and nothing says who asked."""
    events = [
        AllocEvent("alloc", 0, 30 * MIB),
        AllocEvent("free", 0, 30 * MIB),
        AllocEvent("empty_cache", NO_BLOCK, 0),
        AllocEvent("alloc", 1, 20 * MIB),
    ]
    snapshot = snapshot_of(events)
    assert [(e["action"], e["size"] // MIB) for e in snapshot["device_traces"][0]] == [
        ("segment_alloc", 30), ("alloc", 30), ("free_requested", 30), ("free_completed", 30),
        ("segment_free", 30), ("segment_alloc", 20), ("alloc", 20),
    ]  # fmt: skip
    assert [each["total_size"] // MIB for each in snapshot["segments"]] == [20]


both_kinds = pytest.mark.parametrize("text", ["", "expandable_segments:True"])


@both_kinds
def test_the_segments_of_a_snapshot_add_up(text: str) -> None:
    """Blocks fill their segments without gaps, and what they hold is what the replay holds at the end."""
    snapshot = snapshot_of(STREAMS, text)
    result = replay(STREAMS, parse_settings(text))
    segments = snapshot["segments"]
    assert sum(each["total_size"] for each in segments) == result.reserved_timeline[-1]
    assert sum(each["allocated_size"] for each in segments) == result.allocated_timeline[-1]
    for segment in segments:
        addresses = [
            segment["address"] + sum(b["size"] for b in segment["blocks"][:i])
            for i in range(len(segment["blocks"]))
        ]
        assert [block["address"] for block in segment["blocks"]] == addresses
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    assert {each["stream"] for each in segments} == {0, 1}
    assert {each["is_expandable"] for each in segments} == {bool(text)}


@needs("torch")
@both_kinds
def test_torch_understands_the_snapshot(text: str) -> None:
    """torch's own reports, which check that free and used bytes of each segment add up, run on it."""
    from torch.cuda import _memory_viz

    snapshot = snapshot_of(STREAMS, text)
    summary = _memory_viz.segsum(snapshot)  # type: ignore[no-untyped-call]
    assert f"segments: {len(snapshot['segments'])}" in summary
    listing = _memory_viz.trace(snapshot)  # type: ignore[no-untyped-call]
    assert "30.0MiB" in listing
    reserves = [
        each["action"]
        for each in snapshot["device_traces"][0]
        if each["action"] in ("segment_alloc", "segment_map")
    ]
    assert set(reserves) == {"segment_map" if text else "segment_alloc"}
    assert listing.count("cudaMalloc") + listing.count("'action': 'segment_map'") == len(reserves)
    assert "snapshot.pickle" in _memory_viz.trace_plot(snapshot)  # type: ignore[no-untyped-call]
