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
from planner.errors import UsageError

# Enough for a line across a screen, little enough for a JSON document that people open.
TIMELINE_MOMENTS = 200


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
    ``verdict`` is the replay on a card of limited size, if one was asked for; ``expandable`` the same with
    expandable segments, where it failed without them.
    """

    result: ReplayResult
    phases: tuple[PhaseSummary, ...]
    peak: Moment
    reserved_peak: Moment
    n_events: int
    verdict: ReplayResult | None = None
    expandable: ReplayResult | None = None

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
    limit_bytes: int | None = None,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
) -> Summary:
    """Replay ``events`` on an unlimited card, and on one of ``limit_bytes`` for a verdict.

    Raises:
        UsageError: no events.
    """
    result = replay(events, settings)
    index, reserved_index = result.peak_allocated_event, result.peak_reserved_event
    if index is None or reserved_index is None:
        raise UsageError("nothing was allocated, so there is no peak")
    peaks = phase_peak_events(events, result)
    verdict = None if limit_bytes is None else replay(events, settings, limit_bytes)
    moments = moments_at(events, result, (*peaks.values(), index, reserved_index))
    return Summary(
        result=result,
        phases=tuple(PhaseSummary(each, moments[peaks[each.phase]]) for each in result.phases),
        peak=moments[index],
        reserved_peak=moments[reserved_index],
        n_events=len(events),
        verdict=verdict,
        expandable=None if verdict is None else _with_expandable_segments(events, verdict),
    )


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
