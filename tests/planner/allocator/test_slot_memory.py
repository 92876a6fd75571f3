"""One card without a compiled library: its cache, its free blocks, and what waits for other streams.

What it serves event by event is compared with the library in ``test_slots.py``.
"""

from __future__ import annotations

import pytest

from planner.allocator.settings import AllocatorSettings
from planner.allocator.slot_memory import Memory
from planner.units import MIB


def run(memory: Memory, events: list[int], sizes: list[int], lags: tuple[int, ...] = ()) -> int | None:
    """The place of the event that failed."""
    return memory.run(events, sizes, [], lags)[0]


def test_free_neighbours_are_one_block() -> None:
    """Three of 10 MiB in one segment of 30, whose middle goes last."""
    memory = Memory(None, 4)
    sizes = [30 * MIB, 10 * MIB, 10 * MIB, 10 * MIB]
    run(memory, [0, ~0, 1, 2, 3, ~1, ~3], sizes)
    assert memory.free_blocks() == (2, 10 * MIB)
    run(memory, [~2], sizes)
    assert memory.free_blocks() == (1, 30 * MIB)
    assert (memory.allocated, memory.reserved) == (0, 30 * MIB)


def test_a_full_card_gives_its_cache_back_once() -> None:
    """Then 40 MiB find room where 30 were cached."""
    card = Memory(50 * MIB, 2)
    assert run(card, [0, ~0, 1], [30 * MIB, 40 * MIB]) is None
    assert (card.n_retries, card.reserved, card.most_reserved) == (1, 40 * MIB, 40 * MIB)


def test_blocks_of_other_streams_wait_in_order() -> None:
    """With two that may wait, the third lets the first one go; an emptied cache waits for all."""
    memory = Memory(None, 3)
    sizes, lags = [20 * MIB] * 3, (2, 2, 2)
    run(memory, [0, 1, 2, ~0, ~1], sizes, lags)
    assert memory.free_blocks() == (0, 0)
    run(memory, [~2], sizes, lags)
    assert memory.free_blocks() == (1, 20 * MIB)
    memory.release_cached()
    assert memory.reserved == 0


def test_a_phase_begins_with_what_is_reserved() -> None:
    """The most of the phase before is forgotten."""
    memory = Memory(None, 1)
    run(memory, [0, ~0], [100 * MIB])
    memory.release_cached()
    memory.begin_phase()
    assert (memory.most_reserved, memory.most_allocated) == (0, 100 * MIB)


@pytest.mark.parametrize(("size", "mapped", "kept"), [(MIB, 4, 2), (30 * MIB, 100, 40)])
def test_a_growing_segment_is_mapped_by_pages_and_unmapped_whole(size: int, mapped: int, kept: int) -> None:
    """Three blocks in pages of 2 or 20 MiB; an emptied cache gives back all without a block in use."""
    memory = Memory(None, 3, AllocatorSettings(expandable_segments=True))
    run(memory, [0, 1, 2, ~1, ~2], [size] * 3)
    assert memory.reserved == mapped * MIB
    memory.release_cached()
    assert (memory.allocated, memory.reserved) == (size, kept * MIB)
    run(memory, [~0], [size] * 3)
    memory.release_cached()
    assert (memory.allocated, memory.reserved, memory.free_blocks()) == (0, 0, (0, 0))
