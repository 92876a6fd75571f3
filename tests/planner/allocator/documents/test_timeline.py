"""Moments of a replay, and the snapshot that PyTorch's memory visualiser opens."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from measure.trace.report import to_text
from measure.trace.trace_json import to_json
from planner.allocator.documents.export import LoggingAllocator, snapshot_of
from planner.allocator.documents.history import events_from_history, reserved_timeline, settings_from_history
from planner.allocator.documents.summary import summarize
from planner.allocator.documents.timeline import moments_at, phase_peak_events, sampled, spans_of
from planner.allocator.events import NO_BLOCK, AllocEvent
from planner.allocator.replay import replay
from planner.allocator.settings import parse_settings
from planner.units import KIB, MIB
from tests.extras import needs


def _alloc(block: int, n_bytes: int, phase: str, term: str, stream: int = 0) -> AllocEvent:
    return AllocEvent("alloc", block, n_bytes, stream, phase, term, op=f"op{block}", module=f"layers.{block}")


def _free(block: int, n_bytes: int, phase: str, action: str = "free", stream: int = 0) -> AllocEvent:
    return AllocEvent(action, block, n_bytes, stream, phase)  # type: ignore[arg-type]


EVENTS = [
    _alloc(1, 12 * MIB, "load", "weights"),
    _alloc(2, 4 * MIB, "forward", "saved_activations"),
    _alloc(3, 30 * MIB, "forward", "block_recompute"),
    _free(3, 30 * MIB, "forward"),
    _free(2, 4 * MIB, "backward"),
    _alloc(4, 6 * MIB, "backward", "gradients"),
    _alloc(5, 700, "backward", "weights"),
]
# The same with a block of another stream that the program lets go of before that stream is done with it.
STREAMS = [
    *EVENTS,
    _alloc(6, 24 * MIB, "backward", "gathered_parameters", stream=1),
    _free(6, 24 * MIB, "backward", "free_requested", stream=1),
    _alloc(7, 3 * MIB, "optimizer_step", "optimizer_states", stream=1),
    _free(6, 24 * MIB, "optimizer_step", stream=1),
    _alloc(8, 2 * KIB, "optimizer_step", "other_temporaries"),
    _alloc(9, 0, "optimizer_step", "other_temporaries"),
    _free(9, 0, "optimizer_step"),
]


def test_a_phase_starts_with_what_the_one_before_left() -> None:
    """The peak of each phase counts what was alive when it began,
    as ``max_memory_allocated`` does after a reset.
    """
    result = replay(EVENTS)
    peaks = phase_peak_events(EVENTS, result)
    # forward leaves 16 MiB, of which backward frees 4 before it allocates 6 and a little
    assert peaks == {"load": 0, "forward": 2, "backward": 6}
    assert {each.phase: each.allocated_bytes for each in result.phases} == {
        phase: result.allocated_timeline[index] for phase, index in peaks.items()
    }
    shrinking = replay(EVENTS[:5])
    assert phase_peak_events(EVENTS[:5], shrinking)["backward"] == 3, "the last event of the phase before"


def test_moments_hold_terms_in_the_order_of_the_shared_list() -> None:
    """Terms add up to what is allocated, blocks count with their rounded size,
    and their order is that of every table.
    """
    result = replay(EVENTS)
    moments = moments_at(EVENTS, result, [6, 2])
    assert list(moments) == [2, 6]
    assert moments[2].terms == {
        "weights": 12 * MIB,
        "saved_activations": 4 * MIB,
        "block_recompute": 30 * MIB,
    }
    assert moments[6].terms == {"weights": 12 * MIB + KIB, "gradients": 6 * MIB}
    assert list(moments[6].terms) == ["weights", "gradients"]
    for moment in moments.values():
        assert sum(moment.terms.values()) == moment.allocated_bytes
        assert moment.unused_bytes == moment.reserved_bytes - moment.allocated_bytes


def test_samples_keep_every_phase_and_every_peak() -> None:
    """However few moments are asked for,
    each phase has one and the highest of each piece is the one that is kept.
    """
    result = replay(EVENTS)
    for n_moments in (1, 3, 100):
        moments = sampled(EVENTS, result, n_moments)
        assert [each.event for each in moments] == sorted({each.event for each in moments})
        assert {each.phase for each in moments} == {"load", "forward", "backward"}
        assert max(each.allocated_bytes for each in moments) == result.peak_allocated_bytes
    assert len(sampled(EVENTS, result, 100)) == len(EVENTS)


def test_a_phase_that_comes_back_has_several_spans() -> None:
    """With accumulation the later micro-steps follow each other, so a phase can have more than one run."""
    events = [
        _alloc(index, 512, phase, "weights")
        for index, phase in enumerate(["forward_2", "loss_2", "forward_2"])
    ]
    assert [(each.phase, each.start, each.end) for each in spans_of(events, 3)] == [
        ("forward_2", 0, 1), ("loss_2", 1, 2), ("forward_2", 2, 3)
    ]  # fmt: skip


def test_a_summary_says_what_is_reserved_and_not_allocated() -> None:
    """After the 30 MiB temporary is gone its segment stays:
    30 MiB more are unused at the peak of backward.
    """
    summary = summarize(EVENTS)
    unused = {each.peaks.phase: each.at_peak.unused_bytes for each in summary.phases}
    # 12 MiB and 30 MiB have segments of their own, 4 and 6 MiB share one of 20 MiB;
    # 700 bytes take a segment of 2 MiB
    assert unused == {"load": 0, "forward": 16 * MIB, "backward": (12 + 30 + 20 + 2 - 12 - 6) * MIB - KIB}
    assert summary.reserved_peak_bytes == 64 * MIB
    assert (summary.peak.phase, summary.peak.op, summary.peak.module) == ("forward", "op3", "layers.3")


@pytest.mark.parametrize(("limit_bytes", "outcome"), [(150 * MIB, "fits"), (104 * MIB, "out_of_memory")])
def test_a_card_that_is_too_small_is_tried_with_expandable_segments(limit_bytes: int, outcome: str) -> None:
    """10 MiB that lie in a freed segment of 100 MiB hold it, so 95 MiB more ask for 96;
    an expandable segment grows by 20.
    """
    whole, part, later = 100 * MIB, 10 * MIB, 95 * MIB
    events = [
        _alloc(1, whole, "load", "weights"),
        _free(1, whole, "load"),
        _alloc(2, part, "load", "weights"),
    ]
    events.append(_alloc(3, later, "forward", "saved_activations"))
    summary = summarize(events, limit_bytes)
    assert summary.verdict is not None
    assert summary.verdict.outcome == "out_of_memory"
    assert summary.expandable is not None
    assert summary.expandable.outcome == outcome
    text = to_text(summary)
    assert text.startswith("DOES NOT FIT in ")
    assert ("With expandable_segments:True it fits: reserved peak 0.12 GiB" in text) is (outcome == "fits")
    assert ("With expandable segments it does not fit either" in text) is (outcome != "fits")
    assert json.loads(to_json(summary, [], ()))["verdict"]["with_expandable_segments"] == outcome
    roomy = summarize(events, 200 * MIB)
    assert roomy.expandable is None
    assert json.loads(to_json(roomy, [], ()))["verdict"]["with_expandable_segments"] is None
    assert summarize(events, limit_bytes, parse_settings("expandable_segments:True")).expandable is None


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
