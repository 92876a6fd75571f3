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
    (``torch.cuda.empty_cache``).
    """

    events: Sequence[int]
    sizes: Sequence[int]
    streams: Sequence[int]
    begins: Sequence[int]
    empties: frozenset[int] = frozenset()


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
    """One card while a program runs: blocks by number, and the free ones of each stream and size class."""

    def __init__(self, limit_bytes: int | None, n_slots: int) -> None:
        self.limit_bytes = limit_bytes
        self.live = [_NONE] * n_slots
        self.size: list[int] = []
        self.address: list[int] = []
        self.before: list[int] = []
        self.after: list[int] = []
        self.free: list[bool] = []
        self.at: dict[int, int] = {}
        self.pools: dict[int, tuple[list[int], list[int]]] = {}
        self.allocated = self.reserved = 0
        self.most_allocated = self.most_reserved = 0
        self.next_address = LARGE_ROUNDING_BYTES
        self.n_retries = 0

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
        """Give back every segment without a block in use (``release_cached_blocks``)."""
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

    def run(  # noqa: C901, PLR0912, PLR0915 - one loop, because a call for each event would take longer than the event
        self, events: Sequence[int], sizes: Sequence[int], streams: Sequence[int]
    ) -> tuple[int | None, int]:
        """Serve ``events``; (the one that failed, the one after which most was allocated),
        as places in the list.

        Source of each step: c10/cuda/CUDACachingAllocator.cpp malloc (get_free_block, alloc_found_block)
        and free_block.
        """
        # Local names: this loop runs for every event.
        live, size, address, before, after = self.live, self.size, self.address, self.before, self.after
        free, at, place = self.free, self.at, _NONE
        allocated = most = self.allocated
        failed = None
        small, large = self.pool(0, is_small=True), self.pool(0, is_small=False)
        for index, event in enumerate(events):
            if event >= 0:
                want = (sizes[event] + MIN_BLOCK_BYTES - 1) // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES
                if not want:
                    continue
                is_small = want <= SMALL_REQUEST_BYTES
                keys = small if is_small else large
                if streams and streams[event]:
                    keys = self.pool(streams[event], is_small)
                found = bisect_left(keys, want << _ADDRESS_BITS)
                if found < len(keys):
                    block = at[keys.pop(found) & _ADDRESS_MASK]
                    free[block] = False
                else:
                    block = self.new_segment(want)
                    if block < 0:
                        failed = index
                        break
                rest = size[block] - want
                if rest >= MIN_BLOCK_BYTES if is_small else rest > SMALL_REQUEST_BYTES:
                    cut, behind = len(size), after[block]
                    size.append(rest)
                    address.append(address[block] + want)
                    before.append(block)
                    after.append(behind)
                    free.append(True)
                    if behind >= 0:
                        before[behind] = cut
                    after[block], size[block] = cut, want
                    at[address[cut]] = cut
                    insort(keys, rest << _ADDRESS_BITS | address[cut])
                live[event] = block
                allocated += size[block]
                if allocated > most:
                    most, place = allocated, index
                continue
            block = live[~event]
            if block < 0:
                continue
            allocated -= size[block]
            keys = small if sizes[~event] <= SMALL_REQUEST_BYTES else large
            if streams and streams[~event]:
                keys = self.pool(streams[~event], sizes[~event] <= SMALL_REQUEST_BYTES)
            neighbour = before[block]
            if neighbour >= 0 and free[neighbour]:
                del keys[bisect_left(keys, size[neighbour] << _ADDRESS_BITS | address[neighbour])]
                size[neighbour] += size[block]
                after[neighbour] = after[block]
                if after[block] >= 0:
                    before[after[block]] = neighbour
                block = neighbour
            neighbour = after[block]
            if neighbour >= 0 and free[neighbour]:
                del keys[bisect_left(keys, size[neighbour] << _ADDRESS_BITS | address[neighbour])]
                free[neighbour] = False
                size[block] += size[neighbour]
                after[block] = after[neighbour]
                if after[neighbour] >= 0:
                    before[after[neighbour]] = block
            free[block] = True
            at[address[block]] = block
            insort(keys, size[block] << _ADDRESS_BITS | address[block])
        self.allocated, self.most_allocated = allocated, most
        return failed, place


def _memory(program: SlotEvents, limit_bytes: int | None) -> Memory | CompiledMemory:
    return (CompiledMemory if isinstance(program.sizes, array) else Memory)(limit_bytes, len(program.sizes))


def for_replay(program: SlotEvents) -> SlotEvents:
    """The program as it is replayed fastest; one that is replayed more than once is best kept so."""
    arrays = (
        None if isinstance(program.sizes, array) else packed(program.events, program.sizes, program.streams)
    )
    return program if arrays is None else SlotEvents(*arrays, program.begins, program.empties)


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
        failed, place = memory.run(program.events[start:end], program.sizes, program.streams)
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
    once = [event for event in program.events[start:] if event < 0 or event in freed]
    parts = [(program.events[:start], sizes[0]), *((once, each) for each in sizes)]
    programs = [SlotEvents(events, each, program.streams, ()) for events, each in parts]
    fast = [for_replay(each) for each in programs]
    programs = fast if all(isinstance(each.sizes, array) for each in fast) else programs
    memory = _memory(programs[0], None)
    reserved = []
    for each in programs:
        memory.run(each.events, each.sizes, each.streams)
        reserved.append(memory.reserved)
    return reserved[1:]


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
    while high - low > step_bytes:
        if replay_slots(program, guess).failure is None:
            high = guess
        else:
            low = guess
        guess = (low + high) // 2
    return high
