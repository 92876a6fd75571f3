"""A job that does not fit: the first request that the card cannot serve,
and whether another layout of memory would serve it.
"""

from __future__ import annotations

from bisect import bisect_right

from planner.allocator.blocks import Block
from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.settings import AllocatorSettings
from planner.allocator.slots import SlotEvents, replay_slots
from planner.domain.prediction import FailedRequest
from planner.memory.replayed import run_of
from planner.program.job import Job

_EXPANDABLE = AllocatorSettings(expandable_segments=True)


def failed_request(job: Job, limit_bytes: int) -> FailedRequest | None:
    """What fails where the allocator may reserve ``limit_bytes``; ``None`` where the job ends."""
    run = run_of(job)
    stream, events = run.stream, run.events
    failure = replay_slots(events, limit_bytes).failure
    if failure is None:
        return None
    _, phase = stream.phases[bisect_right(events.begins, failure.event) - 1]
    part, module, op = stream.place(stream.events[failure.event])
    could_help = failure.allocated_bytes + failure.n_bytes <= limit_bytes
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
    allocator = CachingAllocator(_EXPANDABLE, limit_bytes)
    live: dict[int, Block] = {}
    for event in events.events:
        if event < 0:
            if ~event in live:
                allocator.free(live.pop(~event))
        elif events.sizes[event]:
            block = allocator.malloc(events.sizes[event], events.streams[event] if events.streams else 0)
            if block is None:
                return False
            live[event] = block
    return True
