"""One card while a program of :mod:`planner.allocator.slots` runs, in plain lists of integers.

The rules are those of :mod:`planner.allocator.caching_allocator` at PyTorch's default settings, and of
:mod:`planner.allocator.expandable` where segments grow.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from copy import copy

from planner.allocator.compiled import HOST_WAITS, MOST_LAG
from planner.allocator.device import Addresses, address_space_bytes
from planner.allocator.settings import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    segment_bytes,
)

# A free block is one integer, size above address: a sorted list of them is searched for the best fit.
_ADDRESS_BITS = 80
_ADDRESS_MASK = (1 << _ADDRESS_BITS) - 1
_NONE = -1


class Memory:
    """One card while a program runs: blocks by number, and the free ones of each stream and size class.

    ``keeps_cache``: a request beyond the limit fails at once, and all is as it was before.
    """

    grows = False
    """Whether segments grow (``expandable_segments``)."""

    def __init__(self, limit_bytes: int | None, n_slots: int, *, keeps_cache: bool = False) -> None:
        self.limit_bytes, self.keeps_cache = limit_bytes, keeps_cache
        self.live = [_NONE] * n_slots
        self.origins = [(0, True)] * n_slots
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
        self.addresses = Addresses()
        self.n_retries = 0

    def under(self, limit_bytes: int) -> Memory:
        """A card with this limit in the same state."""
        made = copy(self)
        made.limit_bytes, made.keeps_cache = limit_bytes, False
        for name in ("live", "origins", "size", "address", "before", "after", "free", "at", "addresses"):
            setattr(made, name, getattr(self, name).copy())
        made.pools = {stream: (small.copy(), large.copy()) for stream, (small, large) in self.pools.items()}
        made.waiting = {pool: blocks.copy() for pool, blocks in self.waiting.items()}
        return made

    def pool(self, stream: int, is_small: bool) -> list[int]:
        """Free blocks of one stream and size class."""
        if stream not in self.pools:
            self.pools[stream] = [], []
        return self.pools[stream][0 if is_small else 1]

    def new_memory(self, want: int, pool: tuple[int, bool]) -> int:
        """A block of new memory for a rounded request, after giving the cache back if need be;
        ``-1`` where there is none.
        """
        del pool
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
        return self._new_block(n_bytes, self.addresses.take(n_bytes), _NONE, _NONE)

    def _new_block(self, n_bytes: int, address: int, before: int, after: int) -> int:
        """A block that is in no list, between two neighbours."""
        self.size.append(n_bytes)
        self.address.append(address)
        self.before.append(before)
        self.after.append(after)
        self.free.append(False)
        return len(self.size) - 1

    def best_fit(self, found: int, keys: list[int]) -> int:
        """Which of the free blocks from ``found`` on, the smallest that is large enough, serves a request."""
        del keys
        return found

    def wait_for_streams(self, left: int = 0) -> None:
        """The host waits for the other streams: what they used can be used again, but for the last ``left``
        blocks of each pool.
        """
        for pool in self.waiting:
            self._complete(pool, left)

    def release_cached(self) -> None:
        """Wait for other streams, and give back every segment without a block in use
        (``release_cached_blocks``).
        """
        self.wait_for_streams()
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
        grows, origins = self.grows, self.origins
        allocated = most = self.allocated
        failed = None
        small, large = self.pool(0, is_small=True), self.pool(0, is_small=False)
        for index, event in enumerate(events):
            if event < 0:
                # Its size may have been another one when it was allocated: in batches of another length.
                slot = ~event
                block, live[slot] = live[slot], _NONE
                allocated -= size[block] if block >= 0 else 0
                self._let_go(block, origins[slot], lags[slot] if lags else 0)
                continue
            slot = event
            is_small = sizes[slot] <= SMALL_REQUEST_BYTES
            keys = small if is_small else large
            if streams and streams[slot]:
                keys = self.pool(streams[slot], is_small)
            want = (sizes[slot] + MIN_BLOCK_BYTES - 1) // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES
            if not want:
                continue
            found = bisect_left(keys, want << _ADDRESS_BITS)
            if found < len(keys):
                block = at[keys.pop(self.best_fit(found, keys)) & _ADDRESS_MASK]
                free[block] = False
            elif (block := self.new_memory(want, (streams[slot] if streams else 0, is_small))) < 0:
                failed = index
                break
            rest = size[block] - want
            if rest >= MIN_BLOCK_BYTES if is_small or grows else rest > SMALL_REQUEST_BYTES:
                self._split(block, want, keys)
            live[slot], origins[slot] = block, (streams[slot] if streams else 0, is_small)
            allocated += size[block]
            if allocated > most:
                most, place = allocated, index
        self.allocated, self.most_allocated = allocated, most
        return failed, place

    def _split(self, block: int, want: int, keys: list[int]) -> None:
        """Cut ``block`` down to ``want`` bytes; the rest is a free block behind it."""
        self._insert(self._cut(block, want), keys)

    def _cut(self, block: int, n_bytes: int) -> int:
        """Cut ``block`` down to ``n_bytes``; the rest is a block behind it, in no list."""
        behind = self.after[block]
        rest = self.size[block] - n_bytes
        cut = self._new_block(rest, self.address[block] + n_bytes, block, behind)
        if behind >= 0:
            self.before[behind] = cut
        self.after[block], self.size[block] = cut, n_bytes
        return cut

    def _insert(self, block: int, keys: list[int]) -> None:
        """Put a block among the free ones."""
        address = self.address[block]
        self.free[block], self.at[address] = True, block
        insort(keys, self.size[block] << _ADDRESS_BITS | address)

    def _remove(self, block: int, keys: list[int]) -> None:
        """Take a block out of the free ones."""
        del keys[bisect_left(keys, self.size[block] << _ADDRESS_BITS | self.address[block])]
        self.free[block] = False

    def _let_go(self, block: int, pool: tuple[int, bool], lag: int) -> None:
        """Take back a block, or note that another stream still uses it; without one the host may wait."""
        if block < 0:
            if lag >= HOST_WAITS - MOST_LAG:
                self.wait_for_streams(HOST_WAITS - lag)
            return
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

    def _merge(self, block: int, keys: list[int]) -> int:
        """Make ``block`` free, as one with the free blocks on both sides of it."""
        left, right = self.before[block], self.after[block]
        if right >= 0 and self.free[right]:
            self._remove(right, keys)
            self._join(block, right)
        if left >= 0 and self.free[left]:
            self._remove(left, keys)
            self._join(left, block)
            block = left
        self._insert(block, keys)
        return block

    def _join(self, block: int, behind: int) -> None:
        """Let ``block`` take in the block behind it."""
        self.size[block] += self.size[behind]
        after = self.after[block] = self.after[behind]
        if after >= 0:
            self.before[after] = block


class GrowingMemory(Memory):
    """A card whose segments grow: one range of addresses for each stream and size class, with pages behind
    as much of it as is needed (``expandable_segments``).

    ``holes``: addresses of blocks without memory behind them, in order, by pool; such a block is not free.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp, as in :mod:`planner.allocator.expandable`.
    """

    grows = True

    def __init__(self, limit_bytes: int | None, n_slots: int) -> None:
        super().__init__(limit_bytes, n_slots)
        self.holes: dict[tuple[int, bool], list[int]] = {}
        self.is_hole: set[int] = set()

    def best_fit(self, found: int, keys: list[int]) -> int:
        """Move on to the next larger block while it could grow to less (``get_free_block``)."""
        reach = self._reach(keys[found])
        while found + 1 < len(keys) and (following := self._reach(keys[found + 1])) < reach:
            found, reach = found + 1, following
        return found

    def _reach(self, key: int) -> int:
        """Bytes of a free block with the hole behind it."""
        block = self.at[key & _ADDRESS_MASK]
        behind = self.after[block]
        return self.size[block] + (self.size[behind] if behind in self.is_hole else 0)

    def new_memory(self, want: int, pool: tuple[int, bool]) -> int:
        """As in plain segments; what was mapped before the card was full stays, as a free block."""
        block = self._grow(want, pool)
        if block < 0:
            self.release_cached()
            self.n_retries += 1
            block = self._grow(want, pool)
        return block

    def _grow(self, want: int, pool: tuple[int, bool]) -> int:
        """Map pages until a block has ``want`` bytes (``try_allocate_expandable_block``)."""
        block = self._first_with_room(want, pool)
        if block in self.is_hole:
            block = self._map(block, min(want, self.size[block]), pool)
        while block >= 0 and self.size[block] < want:
            behind = self.after[block]
            if behind < 0:
                return _NONE
            block = self._map(behind, min(want - self.size[block], self.size[behind]), pool)
        if block >= 0:
            self._remove(block, self.pool(*pool))
        return block

    def _first_with_room(self, want: int, pool: tuple[int, bool]) -> int:
        """The first free block or hole from which ``want`` bytes of addresses can be used; a new segment
        where there is none (``find_expandable_block``).
        """
        holes = self.holes.setdefault(pool, [])
        for address in holes:
            block = self.at[address]
            left = self.before[block]
            if left >= 0 and self.free[left]:
                block = left
            room, each = 0, block
            while room < want and each >= 0 and (self.free[each] or each in self.is_hole):
                room += self.size[each]
                each = self.after[each]
            if room >= want:
                return block
        page = _page_bytes(pool)
        space = address_space_bytes(self.limit_bytes, page, want)
        block = self._new_block(space, self.addresses.take_range(space, page), _NONE, _NONE)
        self._open(block, holes)
        return block

    def _open(self, block: int, holes: list[int]) -> None:
        """Put a block among the holes."""
        address = self.address[block]
        self.at[address] = block
        self.is_hole.add(block)
        insort(holes, address)

    def _close(self, block: int, holes: list[int]) -> None:
        """Take a block out of the holes."""
        self.is_hole.remove(block)
        del holes[bisect_left(holes, self.address[block])]

    def _map(self, hole: int, n_bytes: int, pool: tuple[int, bool]) -> int:
        """Put pages behind the first ``n_bytes`` of a hole; the free block that they are part of then
        (``map_block``).
        """
        page, holes = _page_bytes(pool), self.holes[pool]
        mapped = -(-n_bytes // page) * page
        if self.limit_bytes is not None and self.reserved + mapped > self.limit_bytes:
            return _NONE
        self.reserved += mapped
        self.most_reserved = max(self.most_reserved, self.reserved)
        self._close(hole, holes)
        if mapped < self.size[hole]:
            self._open(self._cut(hole, mapped), holes)
        return self._merge(hole, self.pool(*pool))

    def release_cached(self) -> None:
        """Wait for other streams, and unmap all pages without a block in use (``release_cached_blocks``)."""
        self.wait_for_streams()
        for pool in self.holes:
            for key in self.pool(*pool).copy():
                self._unmap(self.at[key & _ADDRESS_MASK], pool)

    def _unmap(self, block: int, pool: tuple[int, bool]) -> None:
        """Take the pages that lie wholly in a free block from behind it (``unmap_block``); a segment
        without any goes.
        """
        page, keys, holes = _page_bytes(pool), self.pool(*pool), self.holes[pool]
        start = -(-self.address[block] // page) * page
        end = (self.address[block] + self.size[block]) // page * page
        if start >= end:
            return
        self._remove(block, keys)
        if start > self.address[block]:
            front, block = block, self._cut(block, start - self.address[block])
            self._insert(front, keys)
        if self.size[block] > end - start:
            self._insert(self._cut(block, end - start), keys)
        self.reserved -= end - start
        left, right = self.before[block], self.after[block]
        if right in self.is_hole:
            self._close(right, holes)
            self._join(block, right)
        if left in self.is_hole:
            self._close(left, holes)
            self._join(left, block)
            block = left
        if not self.before[block] == _NONE == self.after[block]:
            self._open(block, holes)


def _page_bytes(pool: tuple[int, bool]) -> int:
    """What a growing segment of this stream and size class is mapped by."""
    return SMALL_SEGMENT_BYTES if pool[1] else LARGE_SEGMENT_BYTES
