"""The replay of a program: many thousand requests whose sizes are a list, under a limit or without one.

Where the package was installed with a C compiler, ``replay.c`` serves them, a fifteenth of the time that
:mod:`planner.allocator.caching_allocator` takes, which serves them elsewhere.  Tests hold both to each other.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from planner.allocator.columns import passing
from planner.allocator.compiled import CompiledMemory, packed
from planner.allocator.settings import DEFAULT_SETTINGS, AllocatorSettings, rounded_bytes
from planner.allocator.slot_memory import Memory
from planner.errors import NotModelledError


@dataclass(frozen=True, slots=True)
class SlotEvents:
    """``events``: the slot of an allocation when it is made, and its complement when freed;
    ``sizes`` in bytes by slot.

    ``streams``: CUDA streams by slot; empty where all are on the main one.  ``begins``: events at which a
    phase begins.  ``empties``: those of them before which the program gives its cache back
    (``torch.cuda.empty_cache``).  ``lags``: by slot, how many later blocks of its pool the program lets go
    of before another stream is done with this one (``record_stream``) and it can be used again, unless the
    host waits before (``HOST_WAITS``); empty where no other stream uses any.  ``settings``: of the allocator;
    segments that grow and rounding are replayed.  ``again``: the events of a step that comes any number of
    times, the first one and the one behind the last, which are those of whole phases.

    Raises:
        NotModelledError: other settings.
    """

    events: Sequence[int]
    sizes: Sequence[int]
    streams: Sequence[int]
    begins: Sequence[int]
    empties: frozenset[int] = frozenset()
    lags: Sequence[int] = ()
    settings: AllocatorSettings = DEFAULT_SETTINGS
    again: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        rest = replace(self.settings, expandable_segments=False, roundup_divisions=(), max_split_bytes=None)
        if rest != DEFAULT_SETTINGS:
            raise NotModelledError(
                "of the allocator's settings only expandable_segments, roundup_power2_divisions and "
                "max_split_size_mb are replayed here"
            )

    @property
    def by_slot(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Sizes, streams and lags."""
        return self.sizes, self.streams, self.lags


@dataclass(frozen=True, slots=True)
class PhaseReplay:
    """Most bytes allocated and reserved in one phase, and the event after which most was allocated."""

    allocated_bytes: int
    reserved_bytes: int
    peak_event: int


@dataclass(frozen=True, slots=True)
class Failure:
    """The request that the card could not serve: its event and size,
    and what was allocated and reserved then.

    ``free_bytes`` are cached in ``free_blocks`` pieces, of which the largest has ``largest_free_bytes``.
    """

    event: int
    n_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    free_blocks: int
    largest_free_bytes: int

    @property
    def free_bytes(self) -> int:
        """Reserved and not in use."""
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True, slots=True)
class SlotReplay:
    """What the allocator did: by phase, as far as it came; ``n_retries`` times it gave its cache back."""

    phases: tuple[PhaseReplay, ...]
    n_retries: int
    failure: Failure | None

    @property
    def allocated_bytes(self) -> int:
        """Most bytes allocated."""
        return max((phase.allocated_bytes for phase in self.phases), default=0)

    @property
    def reserved_bytes(self) -> int:
        """Most bytes reserved."""
        return max((phase.reserved_bytes for phase in self.phases), default=0)


def _memory(program: SlotEvents, limit_bytes: int | None) -> Memory | CompiledMemory:
    settings = program.settings
    if isinstance(program.sizes, array) and settings.max_split_bytes is None:
        return CompiledMemory(limit_bytes, len(program.sizes), grows=settings.expandable_segments)
    return Memory(limit_bytes, len(program.sizes), settings)


def for_replay(program: SlotEvents) -> SlotEvents:
    """The program as it is replayed fastest; one that is replayed more than once is best kept so."""
    columns = program.events, program.sizes, program.streams, program.lags
    arrays = None if all(isinstance(each, array) for each in columns) else packed(*columns)
    if arrays is None:
        return program
    events, sizes, streams, lags = arrays
    return replace(program, events=events, sizes=sizes, streams=streams, lags=lags)


def _rounded(program: SlotEvents) -> SlotEvents:
    """The program with the sizes that ``roundup_power2_divisions`` makes of its requests."""
    settings = program.settings
    if not settings.roundup_divisions:
        return program
    blocks = {size: rounded_bytes(size, settings) if size else 0 for size in set(program.sizes)}
    sizes = [blocks[size] for size in program.sizes]
    return replace(program, sizes=sizes, settings=replace(settings, roundup_divisions=()))


def replay_slots(program: SlotEvents, limit_bytes: int | None = None) -> SlotReplay:
    """Replay ``program`` on a card that lets the allocator reserve ``limit_bytes``.

    What is reserved beyond what is allocated is the allocator's cache: blocks to be used again,
    and holes between them.  Where the cache was given back, the last step is repeated.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp.
    """
    asked, program = program, for_replay(_rounded(program))
    memory = _memory(program, limit_bytes)
    steps = _Steps(program)
    phases = []
    failure = None
    for start, end in steps.bounds:
        memory.begin_phase()
        failed, place = steps.run(memory, start, end)
        phases.append(PhaseReplay(memory.most_allocated, memory.most_reserved, max(start + place, start - 1)))
        if failed is not None:
            failure = _failure(memory, failed, asked)
            break
    return SlotReplay(tuple(phases), memory.n_retries, failure)


_Piece = tuple[int, Sequence[int], Sequence[int]]
# A step is repeated no more often.  Of 527 published jobs, all but one that fail after their second step do
# so within these.
_MOST_REPEATS = 4


class _Steps:
    """The phases of ``program``, and the repeats of the step that comes any number of times."""

    def __init__(self, program: SlotEvents) -> None:
        self.bounds = [*pairwise((*program.begins, len(program.events)))]
        self._program = program

    def run(self, memory: Memory | CompiledMemory, start: int, end: int) -> tuple[int | None, int]:
        """Serve the events of a phase, or the rest of one: (the event that failed, if one did;
        how far behind ``start`` most was allocated).
        """
        program = self._program
        if start in program.empties:
            memory.release_cached()
        failed, place = memory.run(program.events[start:end], *program.by_slot)
        if failed is not None:
            return start + failed, place
        return self._repeated(memory) if end == program.again[1] else None, place

    def _repeated(self, memory: Memory | CompiledMemory) -> int | None:
        """Repeat the step, two at a time, until the cache is given back no more in them, or as often as in
        the two before and with as much reserved in the end; the event that fails, if one does.
        """
        n_retries, gave_back, reserved = 0, -1, memory.reserved
        for _ in range(_MOST_REPEATS // 2):
            before = gave_back, reserved
            gave_back, reserved = memory.n_retries - n_retries, memory.reserved
            if not gave_back or (gave_back, reserved) == before:
                return None
            n_retries = memory.n_retries
            for begin, events, places in self._pieces:
                if begin in self._program.empties:
                    memory.release_cached()
                failed, _ = memory.run(events, *self._program.by_slot)
                if failed is not None:
                    return self._program.again[0] + places[failed]
        return None

    @cached_property
    def _pieces(self) -> list[_Piece]:
        """The phases of two repeats: where each begins, and its events with their places in the step."""
        first, last = self._program.again
        *turns, places = _turns(self._program)
        cuts = [*(begin for begin in self._program.begins if first <= begin < last), last]
        bounds = [*pairwise(bisect_left(places, cut - first) for cut in cuts)]
        return [
            (begin, events[low:high], places[low:high])
            for events in turns
            for begin, (low, high) in zip(cuts, bounds, strict=False)
        ]


def _turns(program: SlotEvents) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """The events of a step when it is repeated for the first time, and for the second; their places in it.

    What a step leaves is freed in the next one (outputs that a loop keeps), so it takes the slot of what this
    one frees of the step before, and the other way round.
    """
    first, last = program.again
    events, sizes = program.events[first:last], program.sizes
    kept, places, others = passing(events, len(sizes))
    left = sorted((place for place in others if events[place] >= 0), key=lambda place: sizes[events[place]])
    freed = sorted((place for place in others if events[place] < 0), key=lambda place: sizes[~events[place]])
    if [sizes[events[place]] for place in left] != [sizes[~events[place]] for place in freed]:
        return kept, kept, places
    swapped = events[:]
    for new, old in zip(left, freed, strict=True):
        swapped[new], swapped[old] = ~events[old], ~events[new]  # type: ignore[index]
    return swapped, events, range(len(events))


def _failure(memory: Memory | CompiledMemory, event: int, program: SlotEvents) -> Failure:
    n_bytes = program.sizes[program.events[event]]
    return Failure(event, n_bytes, memory.allocated, memory.reserved, *memory.free_blocks())


def replay_parts(program: SlotEvents, parts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
    """Replay events one part after the other, each with sizes of its own; bytes reserved after each.

    ``program``: whose streams, lags and settings they have.
    """
    programs = [
        _rounded(replace(program, events=events, sizes=sizes, begins=(), empties=frozenset()))
        for events, sizes in parts
    ]
    fast = [for_replay(each) for each in programs]
    programs = fast if all(isinstance(each.sizes, array) for each in fast) else programs
    memory = _memory(programs[0], None)
    reserved = []
    for each in programs:
        memory.run(each.events, *each.by_slot)
        reserved.append(memory.reserved)
    return reserved


class _Begun:
    """``program`` up to the first request for which more than ``limit_bytes`` would be reserved.

    Until then it is the same under every larger limit, so it runs once for all that are tried.
    """

    def __init__(self, program: SlotEvents, limit_bytes: int) -> None:
        self._steps = _Steps(program)
        self._memory = CompiledMemory(limit_bytes, len(program.sizes), keeps_cache=True)
        self._stopped = self._first_failure(self._memory, 0, 0)

    def ends_under(self, limit_bytes: int) -> bool:
        """Whether the program ends under this limit."""
        return (
            self._stopped is None
            or self._first_failure(self._memory.under(limit_bytes), *self._stopped) is None
        )

    def _first_failure(
        self, memory: Memory | CompiledMemory, phase: int, event: int
    ) -> tuple[int, int] | None:
        """The phase and the event that fails, from ``event`` of ``phase`` on."""
        for number, (begin, end) in enumerate(self._steps.bounds[phase:], phase):
            failed, _ = self._steps.run(memory, max(begin, event), end)
            if failed is not None:
                return number, failed
        return None


def _tried(program: SlotEvents, low: int) -> Callable[[int], bool]:
    """Whether ``program`` ends under a limit from ``low`` on.

    Where segments grow, their addresses depend on the card, so each limit is tried from the start.  So it is
    without a compiled library, whose cards alone are copied, and which knows no largest block to split.
    """
    plain = program.settings.max_split_bytes is None and not program.settings.expandable_segments
    if not plain or not isinstance(program.sizes, array):
        return lambda limit_bytes: replay_slots(program, limit_bytes).failure is None
    return _Begun(program, low).ends_under


def least_limit(
    program: SlotEvents, done: SlotReplay, step_bytes: int, limit_bytes: int | None = None
) -> int:
    """The smallest limit, to within ``step_bytes``, under which ``program`` ends;
    ``done`` is its replay without one.

    What is allocated has to be there in any case.  The card's own limit is tried first, so that the answer
    lies on the right side of it.  Repeats of the last step move it no further than to that limit: where they
    end under one limit they may fail under a larger one, where the cache is given back later.
    """
    program = for_replay(_rounded(program))
    low, high = done.allocated_bytes, done.reserved_bytes
    once = replace(program, again=(0, 0))
    least = _searched(_tried(once, low), (low, high), step_bytes, limit_bytes)
    if program.again == once.again or least == high:
        return least
    ends = _tried(program, least)
    if ends(least):
        return least
    above = [bound for bound in (limit_bytes, high) if bound is not None and bound >= least]
    return _searched(ends, (least, min(above)), step_bytes)


def _searched(
    ends_under: Callable[[int], bool],
    bounds: tuple[int, int],
    step_bytes: int,
    limit_bytes: int | None = None,
) -> int:
    """The smallest limit between two ``bounds``, to within ``step_bytes``; tried first is ``limit_bytes``,
    where it lies between them, else one a step above the lower one.
    """
    low, high = bounds
    guess = limit_bytes if limit_bytes is not None and low <= limit_bytes < high else low + step_bytes
    while high - low > step_bytes:
        if ends_under(guess):
            high = guess
        else:
            low = guess
        guess = (low + high) // 2
    return high
