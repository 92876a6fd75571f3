"""A model of PyTorch's CUDA caching allocator: which blocks serve which requests,
and what is reserved on the card for that.

Written from the rules of ``DeviceCachingAllocator`` in c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.13); each
method names its counterpart.  Not modelled: private pools of CUDA graphs and ``torch.cuda.MemPool``, sharing
between processes, and the 2 MiB granularity of the driver for segments that are no multiple of it.
"""

from __future__ import annotations

from bisect import bisect_left

from planner.allocator.blocks import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    UNLIMITED_BYTES,
    Block,
    Clock,
    StreamPool,
    merge,
    split_front,
)
from planner.allocator.device import Device
from planner.allocator.expandable import allocate, release_pages
from planner.allocator.settings import (
    DEFAULT_SETTINGS,
    MIN_BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
    rounded_bytes,
    segment_bytes,
)


class CachingAllocator:
    """The allocator of one card, with the counters of ``torch.cuda.memory_stats``.

    ``allocated_bytes`` are blocks the program holds, ``active_bytes`` those and the ones that another stream
    still uses, ``reserved_bytes`` what was taken from the card.  Blocks count with their full size, as in
    PyTorch, so a block that was not split counts with what the request left over.  ``limit_bytes``: see
    :class:`planner.allocator.device.Device`.
    """

    def __init__(
        self, settings: AllocatorSettings = DEFAULT_SETTINGS, limit_bytes: int | None = None
    ) -> None:
        self.settings = settings
        self.device = Device(limit_bytes)
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.active_bytes = self.peak_active_bytes = 0
        self.n_retries = 0
        self._small: dict[int, StreamPool] = {}
        self._large: dict[int, StreamPool] = {}
        self._clocks = Clock(), Clock()
        self._rounded: dict[int, int] = {}
        self._waiting: dict[int, Block] = {}
        self._last_ticket = 0
        self._expandable = settings.expandable_segments
        self._max_split = UNLIMITED_BYTES if settings.max_split_bytes is None else settings.max_split_bytes
        # setMemoryFraction sets a limit of its own only for a fraction below 1,
        # and garbage collection needs that limit.
        limited = limit_bytes is not None and settings.memory_fraction < 1.0
        self._allowed = (
            int(settings.memory_fraction * limit_bytes) if limited and limit_bytes is not None else None
        )
        self._collects = self._allowed is not None and settings.garbage_collection_threshold > 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the card and not given back."""
        return self.device.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """Most bytes reserved since the start or the last :meth:`reset_peaks`."""
        return self.device.peak_reserved_bytes

    def reset_peaks(self) -> None:
        """Let the peaks start again from what is held now (``resetPeakStats``)."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_active_bytes = self.active_bytes
        self.device.peak_reserved_bytes = self.device.reserved_bytes

    def rounded(self, n_bytes: int) -> int:
        """``n_bytes`` rounded to a block size (``round_size``)."""
        size = self._rounded.get(n_bytes)
        if size is None:
            size = self._rounded[n_bytes] = rounded_bytes(n_bytes, self.settings)
        return size

    def malloc(self, n_bytes: int, stream: int = 0) -> Block | None:
        """A block for ``n_bytes`` (above 0) on ``stream``,
        or ``None`` when the card is full even without the cache.

        Source: ``malloc`` and ``alloc_found_block``.
        """
        size = self._rounded.get(n_bytes) or self.rounded(n_bytes)
        small = size <= SMALL_REQUEST_BYTES
        pool = (self._small if small else self._large).get(stream) or self._new_pool(stream, small)
        block = self._cached(pool, size) or self._new_block(pool, size)
        if block is None:
            return None
        if block.size - size > pool.split_above and size < pool.split_below:
            rest, block = block, split_front(block, size)
            pool.insert(rest)
        self.allocated_bytes += block.size
        self.active_bytes += block.size
        # Plain comparisons: this runs for every event, and max() would take four times as long.
        if self.allocated_bytes > self.peak_allocated_bytes:  # noqa: PLR1730
            self.peak_allocated_bytes = self.allocated_bytes
        if self.active_bytes > self.peak_active_bytes:  # noqa: PLR1730
            self.peak_active_bytes = self.active_bytes
        return block

    def free(self, block: Block) -> None:
        """Take back a block that no other stream uses (``free``)."""
        self.allocated_bytes -= block.size
        self._return(block)

    def request_free(self, block: Block) -> int:
        """Take back a block that another stream still uses (``record_stream``);
        gives the ticket for :meth:`complete_free`.

        Until then it is active and cannot be reused (``insert_events``).
        """
        self.allocated_bytes -= block.size
        self._last_ticket += 1
        self._waiting[self._last_ticket] = block
        return self._last_ticket

    def complete_free(self, ticket: int) -> None:
        """The other stream is done (``process_events``).
        Nothing happens if the allocator has waited for it meanwhile.
        """
        block = self._waiting.pop(ticket, None)
        if block is not None:
            self._return(block)

    def empty_cache(self) -> None:
        """Give everything back to the card that is not in use (``emptyCache``)."""
        self._release_cached()

    def free_blocks(self) -> list[Block]:
        """All that is cached."""
        pools = (*self._small.values(), *self._large.values())
        return [block for pool in pools for block in pool.free_blocks()]

    def _return(self, block: Block) -> None:
        """Join a block with its free neighbours and put it into the free list (``free_block``)."""
        self.active_bytes -= block.size
        if block.prev is not None and block.prev.free:
            merge(block, block.prev)
        if block.next is not None and block.next.free:
            merge(block, block.next)
        block.pool.insert(block)

    def _new_pool(self, stream: int, small: bool) -> StreamPool:
        pool = StreamPool(stream, small, self._clocks[0 if small else 1])
        pool.page_bytes = SMALL_SEGMENT_BYTES if small else self.settings.large_segment_bytes
        # should_split: all but a last piece of less than 512 bytes, or, in a plain large segment,
        # of up to 1 MiB.
        fine = small or self._expandable
        pool.split_above = MIN_BLOCK_BYTES - 1 if fine else SMALL_REQUEST_BYTES
        pool.split_below = UNLIMITED_BYTES if fine else self._max_split
        (self._small if small else self._large)[stream] = pool
        return pool

    def _cached(self, pool: StreamPool, size: int) -> Block | None:
        """The smallest cached block that fits, out of its list (``get_free_block``)."""
        if self._collects:
            pool.clock.searches += 1
        keys = pool.keys
        index = bisect_left(keys, size << ADDRESS_BITS)
        if index == len(keys):
            return None
        block = pool.blocks[keys[index] & ADDRESS_MASK]
        if self._expandable:
            index, block = _least_expandable(pool, index)
        if block.size >= self._max_split and size < self._max_split:
            return None
        if size >= self._max_split and block.size >= size + self.settings.oversize_slack_bytes:
            return None
        del keys[index]
        del pool.blocks[block.address]
        block.free = False
        return block

    def _new_block(self, pool: StreamPool, size: int) -> Block | None:
        """A block of new memory; when the card is full,
        give cached memory back and try again (``malloc``, second half).
        """
        if self._collects:
            self._collect_garbage()
        block = self._reserve(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._reserve(pool, size)
        if block is None:
            self._release_cached()
            self.n_retries += 1
            block = self._reserve(pool, size)
        return block

    def _reserve(self, pool: StreamPool, size: int) -> Block | None:
        """One attempt to get new memory from the card (``alloc_block``)."""
        n_bytes = segment_bytes(size, self.settings)
        if self._allowed is not None and self.device.reserved_bytes + n_bytes > self._allowed:
            return None
        if self._expandable:
            return allocate(self.device, pool, size)
        if not self.device.reserve(n_bytes):
            return None
        return Block(pool, self.device.addresses.take(n_bytes), n_bytes)

    def _release(self, block: Block) -> None:
        block.pool.remove(block)
        self.device.release(block.size)

    def _release_oversize(self, pool: StreamPool, size: int) -> bool:
        """Give back just enough blocks above ``max_split_size``, if that is set
        (``release_available_cached_blocks``).
        """
        if self.settings.max_split_bytes is None:
            return False
        blocks = [
            block
            for block in pool.free_blocks()
            if block.size >= self._max_split and not block.expandable_bytes
        ]
        enough = next((block for block in blocks if block.size >= size), None)
        if enough is not None:
            self._release(enough)
            return True
        released = 0
        while blocks and released < size:
            released += blocks[-1].size
            self._release(blocks.pop())
        return released >= size

    def _release_cached(self) -> None:
        """Wait for the other streams, then give back every segment (or page) without a block in use.

        Source: ``release_cached_blocks``, ``synchronize_and_free_events`` and ``release_blocks``.
        """
        for ticket in list(self._waiting):
            self.complete_free(ticket)
        for pools in (self._large, self._small):
            for stream in sorted(pools):
                for block in pools[stream].free_blocks():
                    if block.expandable_bytes:
                        release_pages(self.device, block)
                    elif block.prev is None and block.next is None:
                        self._release(block)

    def _collect_garbage(self) -> None:
        """Above the threshold, give back large segments that were cached longer than the average.

        The age of a block is the number of searches of the large pool since it was cached.  Source:
        ``garbage_collect_cached_blocks``.
        """
        threshold = int(self.settings.garbage_collection_threshold * (self._allowed or 0))
        excess = self.device.reserved_bytes - threshold
        now = self._clocks[1].searches
        blocks = [
            block
            for stream in sorted(self._large)
            for block in self._large[stream].free_blocks()
            if block.prev is None and block.next is None and not block.expandable_bytes
        ]
        while excess > 0 and blocks:
            average = sum(now - block.inserted_at for block in blocks) / len(blocks)
            old = [block for block in blocks if now - block.inserted_at >= average]
            blocks = [block for block in blocks if now - block.inserted_at < average]
            for block in old:
                excess -= block.size
                self._release(block)


def _least_expandable(pool: StreamPool, index: int) -> tuple[int, Block]:
    """From ``index`` on, move to the next larger block as long as it could grow to less than the one before.

    A block before an unmapped range counts with that range,
    so that holes are filled first (``get_free_block``).
    """
    keys, blocks = pool.keys, pool.blocks
    block = blocks[keys[index] & ADDRESS_MASK]
    reach = _reach(block)
    while index + 1 < len(keys):
        following = blocks[keys[index + 1] & ADDRESS_MASK]
        next_reach = _reach(following)
        if next_reach >= reach:
            break
        index, block, reach = index + 1, following, next_reach
    return index, block


def _reach(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)
