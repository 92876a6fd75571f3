"""One card while a program of :mod:`planner.allocator.slots` runs, where no library is compiled."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from planner.allocator.blocks import Block, StreamPool
from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.compiled import HOST_WAITS, MOST_LAG
from planner.allocator.settings import DEFAULT_SETTINGS, AllocatorSettings


class Memory:
    """One card while a program runs; the same as :class:`planner.allocator.compiled.CompiledMemory`.

    ``max_split_bytes`` of the ``settings`` is replayed here alone: few jobs have it.
    """

    def __init__(
        self, limit_bytes: int | None, n_slots: int, settings: AllocatorSettings = DEFAULT_SETTINGS
    ) -> None:
        self._allocator = CachingAllocator(settings, limit_bytes)
        self._live: list[Block | None] = [None] * n_slots
        self._waiting: dict[StreamPool, deque[int]] = defaultdict(deque)
        self.most_allocated = 0

    @property
    def allocated(self) -> int:
        """Bytes that the program holds."""
        return self._allocator.allocated_bytes

    @property
    def reserved(self) -> int:
        """Bytes taken from the card."""
        return self._allocator.reserved_bytes

    @property
    def most_reserved(self) -> int:
        """Most of them since the phase began."""
        return self._allocator.peak_reserved_bytes

    @property
    def n_retries(self) -> int:
        """How often the cache was given back on a full card."""
        return self._allocator.n_retries

    def begin_phase(self) -> None:
        """What is reserved now is the most of the phase that begins."""
        self._allocator.reset_peaks()

    def release_cached(self) -> None:
        """Give back every segment without a block in use, or page where segments grow."""
        self._allocator.empty_cache()

    def free_blocks(self) -> tuple[int, int]:
        """How many free blocks there are, and the bytes of the largest."""
        sizes = [block.size for block in self._allocator.free_blocks()]
        return len(sizes), max(sizes, default=0)

    def run(
        self, events: Sequence[int], sizes: Sequence[int], streams: Sequence[int], lags: Sequence[int]
    ) -> tuple[int | None, int]:
        """Serve ``events``; (the one that failed, the one after which most was allocated),
        as places in the list.
        """
        allocator, live = self._allocator, self._live
        place, self.most_allocated = -1, allocator.allocated_bytes
        for index, event in enumerate(events):
            if event < 0:
                # Its size may have been another one when it was allocated: in batches of another length.
                block, live[~event] = live[~event], None
                self._let_go(block, lags[~event] if lags else 0)
            elif sizes[event]:
                block = allocator.malloc(sizes[event], streams[event] if streams else 0)
                if block is None:
                    return index, place
                live[event] = block
                if allocator.allocated_bytes > self.most_allocated:
                    place, self.most_allocated = index, allocator.allocated_bytes
        return None, place

    def _let_go(self, block: Block | None, lag: int) -> None:
        """Take back a block, or note that another stream still uses it; without one the host may wait."""
        if block is None:
            if lag >= HOST_WAITS - MOST_LAG:
                for tickets in self._waiting.values():
                    self._complete(tickets, HOST_WAITS - lag)
        elif lag:
            tickets = self._waiting[block.pool]
            tickets.append(self._allocator.request_free(block))
            self._complete(tickets, lag)
        else:
            self._allocator.free(block)

    def _complete(self, tickets: deque[int], most: int) -> None:
        """Blocks of a pool wait for another stream no more, the oldest first, until ``most`` of them do."""
        while len(tickets) > most:
            self._allocator.complete_free(tickets.popleft())
