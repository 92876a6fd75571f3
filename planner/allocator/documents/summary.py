"""A trace in numbers: peaks by phase with their terms and places, unused memory over time,
and the verdict for a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.allocator.documents.timeline import (
    Moment,
    Timeline,
    moments_at,
    phase_peak_events,
    sampled,
    spans_of,
)
from planner.allocator.events import AllocEvent
from planner.allocator.replay import PhasePeaks, ReplayResult, replay
from planner.allocator.settings import DEFAULT_SETTINGS, AllocatorSettings
from planner.errors import ExitCode, UsageError
from planner.units import GIB

# Enough for a line across a screen, little enough for a JSON document that people open.
TIMELINE_MOMENTS = 200

# Least and most that the CUDA context and its kernels take of what a card makes visible, and buffers of NCCL.
# Source: planner/memory/outside.py, for cards of 40 to 132 multiprocessors; 150 to 600 MiB of NCCL, as of the
# coefficient ``nccl_bytes``.
_CONTEXT_BYTES = (int(0.3 * GIB), int(0.8 * GIB))
_MOST_NCCL_BYTES = int(0.6 * GIB)
# Limits that are tried, evenly spaced, where a job fails above its allocated peak.
_SMALLER = 8


@dataclass(frozen=True, slots=True)
class Room:
    """What the allocator may reserve, known only within these ends."""

    least_bytes: int
    most_bytes: int


def room_on(visible_bytes: int, n_cards: int = 1) -> Room:
    """What a card that makes ``visible_bytes`` visible leaves to torch's allocator."""
    most_outside = _CONTEXT_BYTES[1] + (_MOST_NCCL_BYTES if n_cards > 1 else 0)
    return Room(max(0, visible_bytes - most_outside), max(0, visible_bytes - _CONTEXT_BYTES[0]))


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """One phase: its peaks, and what was held when most was allocated in it."""

    peaks: PhasePeaks
    at_peak: Moment


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace in numbers.  Bytes are those of the allocator's blocks,
    as torch's ``max_memory_allocated`` counts them.

    ``peak`` is the moment when most was allocated, ``reserved_peak`` the one when most had been reserved.
    ``verdict`` is the replay with the most room that there may be, if a limit was asked for; ``expandable``
    the same with expandable segments, where it failed without them; ``otherwise`` one with less room that
    ends where the first fails, or fails where it ends.
    """

    result: ReplayResult
    phases: tuple[PhaseSummary, ...]
    peak: Moment
    reserved_peak: Moment
    n_events: int
    verdict: ReplayResult | None = None
    expandable: ReplayResult | None = None
    otherwise: ReplayResult | None = None

    @property
    def exit_code(self) -> ExitCode:
        """Whether it fits; uncertain where the room decides."""
        if self.otherwise is not None:
            return ExitCode.UNCERTAIN
        full = self.verdict is not None and self.verdict.out_of_memory is not None
        return ExitCode.GPU_MEMORY_SHORT if full else ExitCode.FITS

    @property
    def allocated_peak_bytes(self) -> int:
        """Most bytes allocated."""
        return self.result.peak_allocated_bytes

    @property
    def reserved_peak_bytes(self) -> int:
        """Most bytes reserved on a card with room to spare."""
        return self.result.peak_reserved_bytes


def summarize(
    events: Sequence[AllocEvent],
    room: Room | int | None = None,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
) -> Summary:
    """Replay ``events`` on an unlimited card, and for a verdict where the allocator has ``room``.

    Raises:
        UsageError: no events.
    """
    result = replay(events, settings)
    index, reserved_index = result.peak_allocated_event, result.peak_reserved_event
    if index is None or reserved_index is None:
        raise UsageError("nothing was allocated, so there is no peak")
    peaks = phase_peak_events(events, result)
    room = Room(room, room) if isinstance(room, int) else room
    verdict = None if room is None else replay(events, settings, room.most_bytes)
    moments = moments_at(events, result, (*peaks.values(), index, reserved_index))
    return Summary(
        result=result,
        phases=tuple(PhaseSummary(each, moments[peaks[each.phase]]) for each in result.phases),
        peak=moments[index],
        reserved_peak=moments[reserved_index],
        n_events=len(events),
        verdict=verdict,
        expandable=None if verdict is None else _with_expandable_segments(events, verdict),
        otherwise=None if room is None or verdict is None else _otherwise(events, verdict, room, result),
    )


def _otherwise(
    events: Sequence[AllocEvent], verdict: ReplayResult, room: Room, unlimited: ReplayResult
) -> ReplayResult | None:
    """With less room the cache is given back sooner, which may leave larger holes: a job may go on with less
    where it fails with more.
    """
    if verdict.out_of_memory is None:
        if room.least_bytes == room.most_bytes:
            return None
        tight = replay(events, verdict.settings, room.least_bytes)
        return tight if tight.out_of_memory is not None else None
    above = room.most_bytes - unlimited.peak_allocated_bytes
    smaller = (room.most_bytes - above * part // _SMALLER for part in range(1, _SMALLER)) if above > 0 else ()
    tried = (replay(events, verdict.settings, limit) for limit in smaller)
    return next((each for each in tried if each.out_of_memory is None), None)


def _with_expandable_segments(events: Sequence[AllocEvent], verdict: ReplayResult) -> ReplayResult | None:
    """A card that is too small for blocks in plain segments may be large enough for expandable ones,
    which leave fewer holes.
    """
    if verdict.out_of_memory is None or verdict.settings.expandable_segments:
        return None
    return replay(events, replace(verdict.settings, expandable_segments=True), verdict.limit_bytes)


def timeline_of(
    events: Sequence[AllocEvent], summary: Summary, n_moments: int = TIMELINE_MOMENTS
) -> list[Moment]:
    """Moments over the whole trace, on the unlimited card."""
    return sampled(events, summary.result, n_moments)


def timeline_over(events: Sequence[AllocEvent], summary: Summary, n_moments: int) -> Timeline:
    """The whole trace for a picture: moments of the unlimited card, and the limit with where it failed."""
    verdict = summary.verdict
    failed = None if verdict is None else verdict.out_of_memory
    return Timeline(
        spans=tuple(spans_of(events, len(events))),
        moments=tuple(timeline_of(events, summary, n_moments)),
        n_events=len(events),
        limit_bytes=None if verdict is None else verdict.limit_bytes,
        failed_event=None if failed is None else failed.event,
    )
