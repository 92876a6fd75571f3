"""Expandable segments: one growing range of addresses per stream and pool, with memory mapped page by page.

Source: Note [Expandable Segments], ``ExpandableSegment``, ``find_expandable_block``, ``map_block``,
``unmap_block`` and ``try_allocate_expandable_block`` in c10/cuda/CUDACachingAllocator.cpp.  Pages are 2 MiB
in the small pool and ``large_segment_size`` (20 MiB) in the large one.
"""

from __future__ import annotations

from planner.allocator.blocks import Block, StreamPool, merge, split_front
from planner.allocator.device import Device, address_space_bytes


def allocate(device: Device, pool: StreamPool, size: int) -> Block | None:
    """A block of at least ``size`` bytes (in no list) at the lowest address where one fits,
    or ``None`` when the card is full.

    What was mapped before the card was full stays, as a free block.
    """
    candidate = _find(device, pool, size)
    if not candidate.mapped and not _map(device, candidate, min(candidate.size, size)):
        return None
    while candidate.size < size:
        # The candidate is free and mapped, and ends where an unmapped range starts;
        # mapping that merges the two.
        following = candidate.next
        if following is None or not _map(device, following, min(size - candidate.size, following.size)):
            return None
        candidate = following
    pool.remove(candidate)
    return candidate


def release_pages(device: Device, block: Block) -> None:
    """Unmap the whole pages inside a free block; the parts of pages at its ends stay mapped."""
    pool, page = block.pool, block.pool.page_bytes
    # Addresses of a segment count from a multiple of the page size,
    # so pages are aligned in absolute addresses too.
    start = -(-block.address // page) * page
    end = (block.address + block.size) // page * page
    if start >= end:
        return
    pool.remove(block)
    if start > block.address:
        pool.insert(split_front(block, start - block.address))
    if end < block.address + block.size:
        rest, block = block, split_front(block, end - block.address)
        pool.insert(rest)
    device.unmap(block.address, block.size, pool.stream)
    block.mapped = False
    merge(block, block.prev)
    merge(block, block.next)
    if block.size != block.expandable_bytes:
        pool.insert_unmapped(block)


def _find(device: Device, pool: StreamPool, size: int) -> Block:
    """The first free or unmapped block from which ``size`` bytes of addresses are available;
    a new segment if there is none.
    """
    for address in sorted(pool.unmapped):
        block = pool.unmapped[address]
        if block.prev is not None and block.prev.free:
            block = block.prev
        if _has_room(block, size):
            return block
    page = pool.page_bytes
    space = address_space_bytes(device.limit_bytes, page, size)
    block = Block(pool, device.addresses.take_range(space, page), space, space)
    pool.insert_unmapped(block)
    return block


def _has_room(block: Block | None, size: int) -> bool:
    while size > 0 and block is not None and block.free:
        size -= block.size
        block = block.next
    return size <= 0


def _map(device: Device, block: Block, size: int) -> bool:
    """Put pages behind the first ``size`` bytes of an unmapped block and join it with its free neighbours."""
    pool, page = block.pool, block.pool.page_bytes
    mapped = -(-size // page) * page
    if not device.map(block.address, mapped, pool.stream):
        return False
    pool.remove(block)
    if mapped < block.size:
        rest = Block(pool, block.address + mapped, block.size - mapped, block.expandable_bytes)
        rest.prev, rest.next = block, block.next
        if rest.next is not None:
            rest.next.prev = rest
        block.next = rest
        block.size = mapped
        pool.insert_unmapped(rest)
    block.mapped = True
    merge(block, block.prev)
    merge(block, block.next)
    pool.insert(block)
    return True
