"""Memory over the step: what is allocated and reserved at moments of the replay, for a chart or a picture."""

from __future__ import annotations

from dataclasses import replace

from planner.allocator.documents.timeline import Moment, Span, Timeline, pieces_of
from planner.allocator.slots import replay_slots
from planner.domain.prediction import MemoryPrediction
from planner.domain.scenario import Scenario
from planner.domain.term import ALLOCATED_TERM_ORDER, DRIVER_TERMS
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.fullest_stage import fullest_job
from planner.memory.replayed import run_of, terms_at

# As many as a picture has places; a chart in text takes the most of several.
_MOMENTS = 1500


def timeline_of(scenario: Scenario, coefficients: Coefficients, memory: MemoryPrediction) -> Timeline:
    """The step of one job over time, as a card without a limit shows it,
    with the limit of the card beside it.

    The replay runs in pieces that are smaller than phases; of each piece the fullest moment is taken.
    """
    job = fullest_job(scenario, coefficients)
    run = run_of(job)
    stream, events = run.stream, run.events
    ends = [*(begin for begin, _ in stream.phases[1:]), len(stream.events)]
    spans = tuple(
        Span(phase, begin, end)
        for (begin, phase), end in zip(stream.phases, ends, strict=True)
        if end > begin
    )
    pieces = pieces_of(spans, _MOMENTS)
    done = replay_slots(replace(events, begins=[start for start, _ in pieces])).phases
    terms = terms_at(stream, events, [piece.peak_event for piece in done])
    moments = []
    for (start, _), piece, held in zip(pieces, done, terms, strict=True):
        event = max(piece.peak_event, start)
        # Blocks are larger than what was asked for.
        held["other_temporaries"] = (
            held.get("other_temporaries", 0) + piece.allocated_bytes - sum(held.values())
        )
        ordered = {str(name): held[name] for name in sorted(held, key=ALLOCATED_TERM_ORDER.__getitem__)}
        _, module, op = stream.place(max(stream.events[event], ~stream.events[event]))
        phase = next(span.phase for span in spans if span.end > start)
        moments.append(Moment(event, phase, op, module, piece.allocated_bytes, piece.reserved_bytes, ordered))
    failed = None if memory.failed is None else memory.failed.event
    return Timeline(spans, tuple(moments), len(stream.events), _for_allocator(memory), failed)


def _for_allocator(memory: MemoryPrediction) -> int | None:
    """What the card leaves to the allocator at the peak."""
    if memory.limit_bytes is None:
        return None
    phase = memory.limiting_phase
    outside = sum(
        float(term.n_bytes) for term in memory.terms if term.name in DRIVER_TERMS and phase in term.phases
    )
    return max(memory.limit_bytes - round(outside), 0)
