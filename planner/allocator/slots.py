"""The replay of a program: many thousand requests whose sizes are a list, under a limit or without one.

It follows the rules of :mod:`planner.allocator.caching_allocator` at PyTorch's default settings, written as
one loop over integers: about a microsecond for each event, a fifth of what objects take.  Where the package
was installed with a C compiler, ``replay.c`` is the same loop, much faster.  Tests hold all three to each
other.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise

from planner.allocator.compiled import CompiledMemory, packed
from planner.allocator.settings import (
    LARGE_ROUNDING_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    segment_bytes,
)


@dataclass(frozen=True, slots=True)
class SlotEvents:
    """``events``: the slot of an allocation when it is made, and its complement when freed;
    ``sizes`` in bytes by slot.

    ``streams``: CUDA streams by slot; empty where all are on the main one.  ``begins``: events at which a
    phase begins.  ``empties``: numbers of the phases before which the program gives its cache back
    (``torch.cuda.empty_cache``).  ``lags``: by slot, how many later blocks of its pool the program lets go
    of before another stream is done with this one (``record_stream``) and it can be used again; empty where
    no other stream uses any.
    """

    events: Sequence[int]
    sizes: Sequence[int]
    streams: Sequence[int]
    begins: Sequence[int]
    empties: frozenset[int] = frozenset()
    lags: Sequence[int] = ()

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


# A free block is one integer, size above address: a sorted list of them is searched for the best fit.
_ADDRESS_BITS = 80
_ADDRESS_MASK = (1 << _ADDRESS_BITS) - 1
_NONE = -1


class Memory:
    """One card while a program runs: blocks by number, and the free ones of each stream and size class.

    ``keeps_cache``: a request beyond the limit fails at once, and all is as it was before.
    """

    def __init__(self, limit_bytes: int | None, n_slots: int, *, keeps_cache: bool = False) -> None:
        self.limit_bytes, self.keeps_cache = limit_bytes, keeps_cache
        self.live = [_NONE] * n_slots
        self.size: list[int] = []
        self.address: list[int] = []
        self.before: list[int] = []
        self.after: list[int] = []
        self.free: list[bool] = []
        self.at: dict[int, int] = {}
        self.pools: dict[int, tuple[list[int], list[int]]] = {}
        self.waiting: dict[tuple[int, bool], list[int]] = {}
        self.allocated = self.reserved = 0
        self.most_allocated = self.most_reserved = 0
        self.next_address = LARGE_ROUNDING_BYTES
        self.n_retries = 0

    def under(self, limit_bytes: int) -> Memory:
        """A card with this limit in the same state."""
        made = copy(self)
        made.limit_bytes, made.keeps_cache = limit_bytes, False
        for name in ("live", "size", "address", "before", "after", "free", "at"):
            setattr(made, name, getattr(self, name).copy())
        made.pools = {stream: (small.copy(), large.copy()) for stream, (small, large) in self.pools.items()}
        made.waiting = {pool: blocks.copy() for pool, blocks in self.waiting.items()}
        return made

    def pool(self, stream: int, is_small: bool) -> list[int]:
        """Free blocks of one stream and size class."""
        if stream not in self.pools:
            self.pools[stream] = [], []
        return self.pools[stream][0 if is_small else 1]

    def new_segment(self, want: int) -> int:
        """A block of new memory for a rounded request, after giving the cache back if need be;
        ``-1`` where there is none.
        """
        n_bytes = segment_bytes(want)
        if self.limit_bytes is not None and self.reserved + n_bytes > self.limit_bytes:
            if self.keeps_cache:
                return _NONE
            self.release_cached()
            self.n_retries += 1
            if self.reserved + n_bytes > self.limit_bytes:
                return _NONE
        self.reserved += n_bytes
        self.most_reserved = max(self.most_reserved, self.reserved)
        self.size.append(n_bytes)
        self.address.append(self.next_address)
        self.next_address += n_bytes
        self.before.append(_NONE)
        self.after.append(_NONE)
        self.free.append(False)
        return len(self.size) - 1

    def release_cached(self) -> None:
        """Wait for other streams, and give back every segment without a block in use
        (``release_cached_blocks``).
        """
        for pool in self.waiting:
            self._complete(pool, 0)
        for keys in (keys for pools in self.pools.values() for keys in pools):
            kept = []
            for key in keys:
                block = self.at[key & _ADDRESS_MASK]
                if self.before[block] == _NONE == self.after[block]:
                    self.reserved -= self.size[block]
                    self.free[block] = False
                else:
                    kept.append(key)
            keys[:] = kept

    def begin_phase(self) -> None:
        """What is reserved now is the most of the phase that begins."""
        self.most_reserved = self.reserved

    def free_blocks(self) -> tuple[int, int]:
        """How many free blocks there are, and the bytes of the largest."""
        sizes = [key >> _ADDRESS_BITS for pools in self.pools.values() for keys in pools for key in keys]
        return len(sizes), max(sizes, default=0)

    def run(
        self, events: Sequence[int], sizes: Sequence[int], streams: Sequence[int], lags: Sequence[int]
    ) -> tuple[int | None, int]:
        """Serve ``events``; (the one that failed, the one after which most was allocated),
        as places in the list.

        Source of each step: c10/cuda/CUDACachingAllocator.cpp malloc (get_free_block, alloc_found_block)
        and free_block.
        """
        # Local names: this loop runs for every event.
        live, size, free, at, place = self.live, self.size, self.free, self.at, _NONE
        allocated = most = self.allocated
        failed = None
        small, large = self.pool(0, is_small=True), self.pool(0, is_small=False)
        for index, event in enumerate(events):
            slot = event if event >= 0 else ~event
            is_small = sizes[slot] <= SMALL_REQUEST_BYTES
            keys = small if is_small else large
            if streams and streams[slot]:
                keys = self.pool(streams[slot], is_small)
            if event < 0:
                block = live[slot]
                if block >= 0:
                    allocated -= size[block]
                    pool = streams[slot] if streams else 0, is_small
                    self._let_go(block, pool, lags[slot] if lags else 0)
                continue
            want = (sizes[slot] + MIN_BLOCK_BYTES - 1) // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES
            if not want:
                continue
            found = bisect_left(keys, want << _ADDRESS_BITS)
            if found < len(keys):
                block = at[keys.pop(found) & _ADDRESS_MASK]
                free[block] = False
            elif (block := self.new_segment(want)) < 0:
                failed = index
                break
            rest = size[block] - want
            if rest >= MIN_BLOCK_BYTES if is_small else rest > SMALL_REQUEST_BYTES:
                self._split(block, want, keys)
            live[slot] = block
            allocated += size[block]
            if allocated > most:
                most, place = allocated, index
        self.allocated, self.most_allocated = allocated, most
        return failed, place

    def _split(self, block: int, want: int, keys: list[int]) -> None:
        """Cut ``block`` down to ``want`` bytes; the rest is a free block behind it."""
        size, address, before, after = self.size, self.address, self.before, self.after
        rest, cut, behind = size[block] - want, len(size), after[block]
        size.append(rest)
        address.append(address[block] + want)
        before.append(block)
        after.append(behind)
        self.free.append(True)
        if behind >= 0:
            before[behind] = cut
        after[block], size[block] = cut, want
        self.at[address[cut]] = cut
        insort(keys, rest << _ADDRESS_BITS | address[cut])

    def _let_go(self, block: int, pool: tuple[int, bool], lag: int) -> None:
        """Take back a block, or note that another stream still uses it."""
        if not lag:
            self._merge(block, self.pool(*pool))
            return
        self.waiting.setdefault(pool, []).append(block)
        self._complete(pool, lag)

    def _complete(self, pool: tuple[int, bool], most: int) -> None:
        """Blocks of a pool wait for another stream no more, the oldest first, until ``most`` of them do
        (``process_events``).
        """
        waiting = self.waiting[pool]
        while len(waiting) > most:
            self._merge(waiting.pop(0), self.pool(*pool))

    def _merge(self, block: int, keys: list[int]) -> None:
        """Make ``block`` free, as one with the free blocks on both sides of it."""
        size, address, before, after, free = self.size, self.address, self.before, self.after, self.free
        left = before[block]
        if left >= 0 and free[left]:
            del keys[bisect_left(keys, size[left] << _ADDRESS_BITS | address[left])]
            size[left] += size[block]
            after[left] = after[block]
            if after[block] >= 0:
                before[after[block]] = left
            block = left
        right = after[block]
        if right >= 0 and free[right]:
            del keys[bisect_left(keys, size[right] << _ADDRESS_BITS | address[right])]
            free[right] = False
            size[block] += size[right]
            after[block] = after[right]
            if after[right] >= 0:
                before[after[right]] = block
        free[block] = True
        self.at[address[block]] = block
        insort(keys, size[block] << _ADDRESS_BITS | address[block])


def _memory(
    program: SlotEvents, limit_bytes: int | None, *, keeps_cache: bool = False
) -> Memory | CompiledMemory:
    is_packed = isinstance(program.sizes, array)
    return (CompiledMemory if is_packed else Memory)(limit_bytes, len(program.sizes), keeps_cache=keeps_cache)


def for_replay(program: SlotEvents) -> SlotEvents:
    """The program as it is replayed fastest; one that is replayed more than once is best kept so."""
    columns = program.events, program.sizes, program.streams, program.lags
    arrays = None if all(isinstance(each, array) for each in columns) else packed(*columns)
    if arrays is None:
        return program
    events, sizes, streams, lags = arrays
    return SlotEvents(events, sizes, streams, program.begins, program.empties, lags)


def replay_slots(program: SlotEvents, limit_bytes: int | None = None) -> SlotReplay:
    """Replay ``program`` on a card that lets the allocator reserve ``limit_bytes``.

    What is reserved beyond what is allocated is the allocator's cache: blocks to be used again,
    and holes between them.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp.
    """
    program = for_replay(program)
    memory = _memory(program, limit_bytes)
    bounds = [*program.begins, len(program.events)]
    phases = []
    failure = None
    for number, (start, end) in enumerate(pairwise(bounds)):
        if number in program.empties:
            memory.release_cached()
        memory.begin_phase()
        failed, place = memory.run(program.events[start:end], *program.by_slot)
        phases.append(PhaseReplay(memory.most_allocated, memory.most_reserved, max(start + place, start - 1)))
        if failed is not None:
            failure = _failure(memory, start + failed, program)
            break
    return SlotReplay(tuple(phases), memory.n_retries, failure)


def _failure(memory: Memory | CompiledMemory, event: int, program: SlotEvents) -> Failure:
    n_bytes = program.sizes[program.events[event]]
    return Failure(event, n_bytes, memory.allocated, memory.reserved, *memory.free_blocks())


def replay_again(program: SlotEvents, start: int, sizes: Sequence[Sequence[int]]) -> list[int]:
    """Replay ``program``, then its events from ``start`` on once more for each of ``sizes``;
    bytes reserved after each time.

    The events before ``start`` have the first of ``sizes``.  What the repeated part does not free stays:
    it is not made twice.
    """
    freed = {~event for event in program.events[start:] if event < 0}
    once = array("q", [event for event in program.events[start:] if event < 0 or event in freed])
    parts = [(program.events[:start], sizes[0]), *((once, each) for each in sizes)]
    lags = program.lags
    programs = [SlotEvents(events, each, program.streams, (), lags=lags) for events, each in parts]
    fast = [for_replay(each) for each in programs]
    programs = fast if all(isinstance(each.sizes, array) for each in fast) else programs
    memory = _memory(programs[0], None)
    reserved = []
    for each in programs:
        memory.run(each.events, *each.by_slot)
        reserved.append(memory.reserved)
    return reserved[1:]


class _Begun:
    """``program`` up to the first request for which more than ``limit_bytes`` would be reserved.

    Until then it is the same under every larger limit, so it runs once for all that are tried.
    """

    def __init__(self, program: SlotEvents, limit_bytes: int) -> None:
        self._program, self._bounds = program, [*pairwise((*program.begins, len(program.events)))]
        self._memory = _memory(program, limit_bytes, keeps_cache=True)
        self._stopped = self._first_failure(self._memory, 0, self._bounds[0][0])

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
        program = self._program
        for number, (begin, end) in enumerate(self._bounds[phase:], phase):
            start = event if number == phase else begin
            if number > phase and number in program.empties:
                memory.release_cached()
            failed, _ = memory.run(program.events[start:end], *program.by_slot)
            if failed is not None:
                return number, start + failed
        return None


def least_limit(
    program: SlotEvents, done: SlotReplay, step_bytes: int, limit_bytes: int | None = None
) -> int:
    """The smallest limit, to within ``step_bytes``, under which ``program`` ends;
    ``done`` is its replay without one.

    What is allocated has to be there in any case.  The card's own limit is tried first, so that the answer
    lies on the right side of it; else a limit one step above what is allocated.
    """
    program = for_replay(program)
    low, high = done.allocated_bytes, done.reserved_bytes
    guess = low + step_bytes if limit_bytes is None or not low <= limit_bytes < high else limit_bytes
    if high - low <= step_bytes:
        return high
    begun = _Begun(program, low)
    while high - low > step_bytes:
        if begun.ends_under(guess):
            high = guess
        else:
            low = guess
        guess = (low + high) // 2
    return high
