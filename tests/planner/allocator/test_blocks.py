"""Blocks, their neighbours, and the lists that free ones wait in."""

from __future__ import annotations

import pytest

from planner.allocator.blocks import Block, Clock, StreamPool, merge, split_front


@pytest.fixture
def pool() -> StreamPool:
    """An empty list."""
    return StreamPool(0, False, Clock())


def row(pool: StreamPool, *sizes: int) -> list[Block]:
    """Blocks side by side in one segment that begins at 1,000."""
    blocks: list[Block] = []
    address = 1000
    for size in sizes:
        block = Block(pool, address, size)
        if blocks:
            block.prev, blocks[-1].next = blocks[-1], block
        blocks.append(block)
        address += size
    return blocks


def order(first: Block) -> list[tuple[int, int]]:
    """Address and size of a block and of all behind it; each knows the one before it."""
    found, block = [], first
    while True:
        found.append((block.address, block.size))
        if block.next is None:
            return found
        assert block.next.prev is block
        block = block.next


def test_free_blocks_are_ordered_by_size_and_then_by_address(pool: StreamPool) -> None:
    """Whatever the order in which they came."""
    a, b, c, d = row(pool, 30, 10, 30, 20)
    for block in (c, a, d, b):
        pool.insert(block)
    assert pool.free_blocks() == [b, d, a, c]
    pool.remove(a)
    assert pool.free_blocks() == [b, d, c]
    assert (a.free, b.free) == (False, True)


def test_a_block_remembers_when_it_was_cached(pool: StreamPool) -> None:
    """By the searches of its pools."""
    (block,) = row(pool, 8)
    pool.clock.searches = 7
    pool.insert(block)
    assert block.inserted_at == 7


def test_a_free_neighbour_on_either_side_is_swallowed(pool: StreamPool) -> None:
    """The one before gives its address; all that is left knows its new neighbours."""
    a, b, c, d = row(pool, 10, 20, 30, 40)
    pool.insert(a)
    pool.insert(c)
    merge(b, b.prev)
    merge(b, b.next)
    assert order(b) == [(1000, 60), (1060, 40)]
    assert (b.prev, d.prev, pool.free_blocks()) == (None, b, [])


def test_a_block_in_the_middle_keeps_the_chain(pool: StreamPool) -> None:
    """What lay before the swallowed one leads to it."""
    a, b, c = row(pool, 10, 20, 30)
    pool.insert(b)
    merge(c, b)
    assert order(a) == [(1000, 10), (1010, 50)]


def test_used_blocks_and_ones_without_memory_are_not_swallowed(pool: StreamPool) -> None:
    """Nor is nothing; two without memory behind them are one range of addresses."""
    a, b, c = row(pool, 10, 20, 30)
    merge(a, None)
    merge(a, b)
    pool.insert_unmapped(b)
    merge(a, b)
    assert order(a) == [(1000, 10), (1010, 20), (1030, 30)]
    assert b.free
    c.mapped = False
    merge(c, b)
    assert order(a) == [(1000, 10), (1010, 50)]
    assert pool.unmapped == {}


def test_the_front_of_a_block_is_split_off(pool: StreamPool) -> None:
    """The block keeps the rest, and its neighbours."""
    a, b, _ = row(pool, 10, 20, 30)
    front = split_front(b, 8)
    assert order(a) == [(1000, 10), (1010, 8), (1018, 12), (1030, 30)]
    assert (front.prev, front.next, front.pool) == (a, b, pool)
    first = split_front(a, 1)
    assert order(first)[:2] == [(1000, 1), (1001, 9)]
