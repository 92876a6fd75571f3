"""A job that does not fit: the first request that the card cannot serve,
and whether another layout of memory would serve it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from planner.allocator.slots import SlotEvents, replay_slots
from planner.domain.prediction import FailedRequest
from planner.memory.replayed import run_of
from planner.program.job import Job


def failed_request(job: Job, limit_bytes: int) -> FailedRequest | None:
    """What fails where the allocator may reserve ``limit_bytes``; ``None`` where the job ends."""
    run = run_of(job)
    stream, events = run.stream, run.events
    failure = replay_slots(events, limit_bytes).failure
    if failure is None:
        return None
    _, phase = stream.phases[bisect_right(events.begins, failure.event) - 1]
    part, module, op = stream.place(stream.events[failure.event])
    is_short = failure.allocated_bytes + failure.n_bytes > limit_bytes
    could_help = not is_short and not events.settings.expandable_segments
    return FailedRequest(
        phase,
        part,
        module,
        op,
        failure.n_bytes,
        failure.free_bytes,
        failure.free_blocks,
        failure.largest_free_bytes,
        limit_bytes - failure.reserved_bytes,
        failure.event,
        ends_expandable(events, limit_bytes) if could_help else None,
    )


def ends_expandable(events: SlotEvents, limit_bytes: int) -> bool:
    """Whether every request is served with expandable segments, which leave fewer holes between blocks."""
    settings = replace(events.settings, expandable_segments=True)
    return replay_slots(replace(events, settings=settings), limit_bytes).failure is None
