"""Blocks of device memory and the free lists they wait in.

The names follow c10/cuda/CUDACachingAllocator.cpp: ``Block``, ``BlockPool`` (here one per stream),
``BlockComparatorSize`` and ``try_merge_blocks``.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from planner.units import GIB

# A free list is a sorted list of single integers, size above address:
# comparing them is what makes the search fast.
ADDRESS_BITS = 128
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1

# Far above any card: without a limit an expandable segment may grow to this.
UNLIMITED_BYTES = 1024 * 64 * GIB


class Block:
    """A run of addresses inside one segment.  ``free`` means it may be handed out or merged;
    ``mapped`` that memory is behind it.

    ``prev`` and ``next`` are its neighbours in the segment.  ``expandable_bytes`` is the address space of its
    expandable segment, 0 in a plain one.
    """

    __slots__ = (
        "address",
        "expandable_bytes",
        "free",
        "inserted_at",
        "mapped",
        "next",
        "pool",
        "prev",
        "size",
    )

    def __init__(self, pool: StreamPool, address: int, size: int, expandable_bytes: int = 0) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.expandable_bytes = expandable_bytes
        self.prev: Block | None = None
        self.next: Block | None = None
        self.free = False
        self.mapped = True
        self.inserted_at = 0


class Clock:
    """Counts the searches of the large (or of the small) pools:
    the age of a cached block is measured in these.
    """

    __slots__ = ("searches",)

    def __init__(self) -> None:
        self.searches = 0


class StreamPool:
    """Free blocks of one stream and one size class, ordered by size and then address
    (``BlockComparatorSize``).

    A block is split when more than ``split_above`` bytes remain and the request is below ``split_below``
    (``should_split``).
    """

    __slots__ = (
        "blocks",
        "clock",
        "is_small",
        "keys",
        "page_bytes",
        "split_above",
        "split_below",
        "stream",
        "unmapped",
    )

    def __init__(self, stream: int, is_small: bool, clock: Clock) -> None:
        self.stream = stream
        self.is_small = is_small
        self.clock = clock
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: dict[int, Block] = {}
        self.page_bytes = 0
        self.split_above = 0
        self.split_below = UNLIMITED_BYTES

    def insert(self, block: Block) -> None:
        """Put a block into the free list."""
        block.free = True
        block.inserted_at = self.clock.searches
        insort(self.keys, block.size << ADDRESS_BITS | block.address)
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        """Take a block out of the free list (or out of the unmapped ones)."""
        block.free = False
        if not block.mapped:
            del self.unmapped[block.address]
            return
        del self.keys[bisect_left(self.keys, block.size << ADDRESS_BITS | block.address)]
        del self.blocks[block.address]

    def insert_unmapped(self, block: Block) -> None:
        """Keep a range of addresses that has no memory behind it."""
        block.free = True
        block.mapped = False
        self.unmapped[block.address] = block

    def free_blocks(self) -> list[Block]:
        """Free blocks in the order of the list."""
        return [self.blocks[key & ADDRESS_MASK] for key in self.keys]


def merge(block: Block, other: Block | None) -> None:
    """Let ``block`` (in no list) swallow a free neighbour of the same kind;
    else do nothing.  Source: ``try_merge_blocks``.
    """
    if other is None or not other.free or other.mapped is not block.mapped:
        return
    block.pool.remove(other)
    if block.prev is other:
        block.address = other.address
        block.prev = other.prev
        if block.prev is not None:
            block.prev.next = block
    else:
        block.next = other.next
        if block.next is not None:
            block.next.prev = block
    block.size += other.size


def split_front(block: Block, size: int) -> Block:
    """A new block of the first ``size`` bytes of ``block`` (in no list),
    which keeps the rest.  Source: ``alloc_found_block``.
    """
    front = Block(block.pool, block.address, size, block.expandable_bytes)
    front.prev = block.prev
    if front.prev is not None:
        front.prev.next = front
    front.next = block
    block.prev = front
    block.address += size
    block.size -= size
    return front
