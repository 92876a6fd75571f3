"""Moments of a replay: what was allocated for which term, and what was reserved,
at chosen events or over the whole stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from planner.allocator.events import AllocEvent
from planner.allocator.replay import ReplayResult
from planner.domain.term import ALLOCATED_TERM_ORDER

_NEAR = 1.5


@dataclass(frozen=True, slots=True)
class Moment:
    """What the allocator held after event number ``event``.
    ``terms`` are block sizes and add up to ``allocated_bytes``.
    """

    event: int
    phase: str
    op: str
    module: str
    allocated_bytes: int
    reserved_bytes: int
    terms: dict[str, int]

    @property
    def unused_bytes(self) -> int:
        """Reserved but not allocated: cached blocks and what fragmentation made unusable."""
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True, slots=True)
class Span:
    """Events ``start`` to ``end`` (not included) belong to one phase."""

    phase: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What was held over a whole stream of ``n_events``: its phases, and moments of it in order,
    the fullest among them.

    ``limit_bytes``: what the card lets the allocator reserve; ``failed_event``:
    the request that it cannot serve.
    """

    spans: tuple[Span, ...]
    moments: tuple[Moment, ...]
    n_events: int
    limit_bytes: int | None = None
    failed_event: int | None = None

    @property
    def peak(self) -> Moment:
        """The first moment when most was allocated."""
        return max(self.moments, key=lambda moment: moment.allocated_bytes)

    @property
    def reserved_peak_bytes(self) -> int:
        """Most bytes reserved."""
        return max(moment.reserved_bytes for moment in self.moments)

    @property
    def near_limit_bytes(self) -> int | None:
        """The limit, where drawing it would not leave a third of the picture empty."""
        limit = self.limit_bytes
        return limit if limit is not None and limit <= _NEAR * self.reserved_peak_bytes else None


def spans_of(events: Sequence[AllocEvent], n_events: int) -> list[Span]:
    """Runs of the same phase among the first ``n_events``; with accumulation a phase can have several."""
    spans = []
    for phase, run in groupby(range(n_events), key=lambda index: events[index].phase):
        indexes = list(run)
        spans.append(Span(phase, indexes[0], indexes[-1] + 1))
    return spans


def phase_peak_events(events: Sequence[AllocEvent], result: ReplayResult) -> dict[str, int]:
    """For each phase the event after which most was allocated in it.

    What a phase starts with counts too, as it does for ``max_memory_allocated``, so this can be the last
    event of the phase before.
    """
    allocated = result.allocated_timeline
    best: dict[str, int] = {}
    for span in spans_of(events, len(allocated)):
        first = max(span.start - 1, 0)
        index = max(range(first, span.end), key=allocated.__getitem__)
        if span.phase not in best or allocated[index] > allocated[best[span.phase]]:
            best[span.phase] = index
    return best


def moments_at(
    events: Sequence[AllocEvent], result: ReplayResult, indexes: Iterable[int]
) -> dict[int, Moment]:
    """What was held after each of the events ``indexes``, in one pass over the stream."""
    wanted = sorted(set(indexes))
    found: dict[int, Moment] = {}
    totals = _running_totals(events, result)
    position = -1
    terms: dict[str, int] = {}
    for index in wanted:
        while position < index:
            position, terms = next(totals)
        event = events[index]
        found[index] = Moment(
            index,
            event.phase,
            event.op,
            event.module,
            result.allocated_timeline[index],
            result.reserved_timeline[index],
            {term: size for term, size in sorted(terms.items(), key=_term_order) if size},
        )
    return found


def sampled(events: Sequence[AllocEvent], result: ReplayResult, n_moments: int) -> list[Moment]:
    """About ``n_moments`` moments over the whole stream: of each of as many pieces,
    the one when most was allocated.

    No piece crosses the border of a phase, and a short phase is cut finer,
    so every phase is seen and every peak is kept.
    """
    allocated = result.allocated_timeline
    pieces = pieces_of(spans_of(events, len(allocated)), n_moments)
    picked = [max(range(start, end), key=allocated.__getitem__) for start, end in pieces]
    return list(moments_at(events, result, picked).values())


def pieces_of(spans: Sequence[Span], n_pieces: int) -> list[tuple[int, int]]:
    """About ``n_pieces`` ranges of events, none across the border of a phase; a short phase is cut finer."""
    n_events = spans[-1].end if spans else 0
    found = []
    for span in spans:
        pieces = max(n_pieces * (span.end - span.start) // n_events, n_pieces // 20, 1)
        step = max((span.end - span.start) // pieces, 1)
        found += [(start, min(start + step, span.end)) for start in range(span.start, span.end, step)]
    return found


def _running_totals(
    events: Sequence[AllocEvent], result: ReplayResult
) -> Iterator[tuple[int, dict[str, int]]]:
    """Index of each event and the bytes by term after it; the same dictionary every time."""
    held: dict[int, tuple[str, int]] = {}
    totals: dict[str, int] = {}
    for index, (event, n_bytes) in enumerate(zip(events, result.held_bytes, strict=False)):
        if event.action == "alloc":
            held[event.block] = event.term, n_bytes
            totals[event.term] = totals.get(event.term, 0) + n_bytes
        elif event.block in held:
            term, size = held.pop(event.block)
            totals[term] -= size
        yield index, totals


def _term_order(item: tuple[str, int]) -> int:
    """Terms in the order of the list that all instruments share; what has no term comes last."""
    return ALLOCATED_TERM_ORDER.get(item[0], len(ALLOCATED_TERM_ORDER))
