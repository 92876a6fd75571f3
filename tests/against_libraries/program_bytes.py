"""Bytes that the step program of a job holds, as tests compare them with real tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from planner.domain.term import Phase, TermName
from planner.memory.outside import paged_bytes
from planner.program.job import Job
from planner.program.load import load_whole
from planner.program.ops.sizes import unit_values
from planner.program.request_stream import RequestStream
from planner.program.step import parts_of, step_of
from planner.program.update.optimizer import optimizer_step


@dataclass(frozen=True, slots=True)
class PhaseBytes:
    """Bytes that tensors of each term ask for when a phase ends, and the most of all of them during it."""

    terms: Counter[TermName]
    peak_bytes: int


def at_the_end_of(job: Job, phase: Phase) -> PhaseBytes:
    """What is alive when ``phase`` ends."""
    stream = step_of(job)
    sizes = stream.sizes({unit: float(count) for unit, count in unit_values(job).items()})
    bounds = [*stream.phases, (len(stream.events), phase)]
    number = next(index for index, (_, name) in enumerate(bounds) if name == phase)
    begin, end = bounds[number][0], bounds[number + 1][0]
    terms, live, peak = Counter[TermName](), 0, 0
    for index, event in enumerate(stream.events[:end]):
        slot = event if event >= 0 else ~event
        change = sizes[slot] if event >= 0 else -sizes[slot]
        terms[stream.term(slot)] += change
        live += change
        peak = max(peak, live) if index >= begin else 0
    return PhaseBytes(terms, peak)


def optimizer_bytes(job: Job) -> tuple[int, int]:
    """(bytes of states after a step, paged ones too; most bytes that a second step needs beyond them)."""
    stream = RequestStream()
    trained = [weight for weight in load_whole(stream, job) if weight.trained]
    values = {unit: float(count) for unit, count in unit_values(job).items()}
    changes = [0, 0]
    for number in range(2):
        begin, live = len(stream.events), 0
        optimizer_step(stream, job, trained, first=not number)
        sizes = stream.sizes(values)
        lives = []
        for event in stream.events[begin:]:
            live += sizes[event] if event >= 0 else -sizes[~event]
            lives.append(live)
        changes[number] = max(lives, default=0) if number else live
    return round(changes[0] + float(paged_bytes(job))), changes[1]


def saved_by_a_layer(job: Job) -> int:
    """Bytes that the forward pass of one layer leaves for backward, its output among them."""
    values = {unit: float(count) for unit, count in unit_values(job).items()}
    template = next(part.template for part in parts_of(job) if part.name == "layer")
    events = template.stages["forward"]
    kept = {event for event in events if event >= 0} - {~event for event in events if event < 0}
    return round(sum(template.unit_bytes[slot] * values[template.units[slot]] for slot in kept))
