"""Moments of a replay: peaks of phases, samples, and the verdict for a card."""

from __future__ import annotations

import json

import pytest

from measure.trace.report import to_text
from measure.trace.trace_json import to_json
from planner.allocator.documents.summary import room_on, summarize, timeline_of
from planner.allocator.documents.timeline import moments_at, phase_peak_events, sampled, spans_of
from planner.allocator.documents.trace_document import TraceDocument
from planner.allocator.replay import replay
from planner.allocator.settings import parse_settings
from planner.units import GIB, KIB, MIB
from tests.planner.allocator.documents.made import EVENTS, alloc, free


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
        alloc(index, 512, phase, "weights")
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
        alloc(1, whole, "load", "weights"),
        free(1, whole, "load"),
        alloc(2, part, "load", "weights"),
    ]
    events.append(alloc(3, later, "forward", "saved_activations"))
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


@pytest.mark.parametrize(("visible_gib", "code"), [(11, 0), (10.5, 4), (10.2, 3)])
def test_what_the_context_leaves_decides(visible_gib: float, code: int) -> None:
    """A job of 10 GiB beside a context of 0.3 to 0.8 GiB."""
    events = [alloc(1, 10 * GIB, "load", "weights")]
    summary = summarize(events, room_on(int(visible_gib * GIB)))
    assert summary.exit_code == code
    assert to_text(summary).startswith(("FITS in", "", "", "DOES NOT FIT in", "UNCERTAIN: with")[code])
    found = TraceDocument.model_validate_json(to_json(summary, timeline_of(events, summary), ())).verdict
    assert found is not None
    assert found.exit_code == code


def test_a_job_that_goes_on_with_less_room_is_uncertain() -> None:
    """Below 130 MiB the first block is given back before the third is asked for; above, the third lies in it
    and keeps it, so 76 MiB more have no room below 136.
    """
    events = [
        alloc(1, 60 * MIB, "load", "weights"),
        free(1, 60 * MIB, "load"),
        alloc(2, 70 * MIB, "load", "weights"),
        alloc(3, 10 * MIB, "load", "weights"),
        free(2, 70 * MIB, "load"),
        alloc(4, 76 * MIB, "forward", "saved_activations"),
    ]
    codes = {size: summarize(events, size * MIB).exit_code for size in (84, 86, 129, 132, 136)}
    assert codes == {84: 3, 86: 0, 129: 0, 132: 4, 136: 0}
    assert to_text(summarize(events, 132 * MIB)).startswith(
        "UNCERTAIN: with 0.13 GiB for torch's allocator it fails"
    )
