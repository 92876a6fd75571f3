"""The model of the CUDA caching allocator: each rule with numbers worked out by hand,
and everything around the replay.
"""

from __future__ import annotations

import pytest

from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.events import (
    AllocEvent,
)
from planner.allocator.replay import replay
from planner.allocator.settings import (
    AllocatorSettings,
    segment_bytes,
)
from planner.errors import UsageError
from planner.units import GIB, MIB
from tests.planner.allocator.streams import stream_of

EXPANDABLE = AllocatorSettings(expandable_segments=True)
OVERSIZE = AllocatorSettings(max_split_bytes=40 * MIB)


def mib(allocator: CachingAllocator) -> tuple[float, float]:
    """Allocated and reserved MiB."""
    return allocator.allocated_bytes / MIB, allocator.reserved_bytes / MIB


# --- sizes --------------------------------------------------------------------------------------------------


# --- settings -----------------------------------------------------------------------------------------------


# --- splitting, best fit, merging ---------------------------------------------------------------------------


def test_small_requests_share_a_segment() -> None:
    """1 MiB and 1 MiB - 512 leave exactly 512 bytes of a 2 MiB segment,
    which is split off and serves a third request.
    """
    allocator = CachingAllocator()
    for n_bytes in (MIB, MIB - 512, 1):
        allocator.malloc(n_bytes)
    assert mib(allocator) == (2, 2)
    allocator.malloc(1)
    assert allocator.reserved_bytes == 4 * MIB


def test_a_large_remainder_is_split_off_only_above_1_mib() -> None:
    """In a 12 MiB segment 10 MiB + 512 leave a usable block; 11 MiB leave exactly 1 MiB,
    which counts as allocated.
    """
    split, kept = CachingAllocator(), CachingAllocator()
    split.malloc(10 * MIB + 1)
    kept.malloc(11 * MIB)
    assert split.allocated_bytes == 10 * MIB + 512
    assert kept.allocated_bytes == 12 * MIB
    split.malloc(MIB + 512)
    assert split.reserved_bytes == 12 * MIB


def test_small_requests_never_use_large_segments() -> None:
    """A free large block does not serve a request of 1 MiB: the pools are separate."""
    allocator = CachingAllocator()
    block = allocator.malloc(100 * MIB)
    assert block is not None
    allocator.free(block)
    allocator.malloc(MIB)
    assert mib(allocator) == (1, 102)


def test_the_smallest_block_that_fits_is_taken() -> None:
    """With 60, 30 and 40 MiB cached, 25 MiB goes into the 30 and the rest of it serves 4 MiB."""
    allocator = CachingAllocator()
    blocks = [allocator.malloc(size * MIB) for size in (60, 30, 40)]
    addresses = [block.address for block in blocks if block]
    for block in blocks:
        assert block is not None
        allocator.free(block)
    first, second = allocator.malloc(25 * MIB), allocator.malloc(4 * MIB)
    assert first is not None
    assert second is not None
    assert (first.address, second.address) == (addresses[1], addresses[1] + 25 * MIB)
    assert allocator.reserved_bytes == 130 * MIB


def test_between_equal_blocks_the_lowest_address_is_taken() -> None:
    """Three free blocks of 30 MiB are used from the lowest address up, in whatever order they were freed."""
    allocator = CachingAllocator()
    blocks = [block for block in (allocator.malloc(30 * MIB) for _ in range(3)) if block]
    addresses = [block.address for block in blocks]
    for index in (1, 2, 0):
        allocator.free(blocks[index])
    again = [allocator.malloc(30 * MIB) for _ in range(3)]
    assert [block.address for block in again if block] == sorted(addresses)


def test_free_neighbours_merge() -> None:
    """Four blocks of 5 MiB fill a 20 MiB segment; freed in any order they are one block again,
    which serves 20 MiB.
    """
    for order in ((0, 2, 1, 3), (3, 2, 1, 0), (1, 2, 0, 3)):
        allocator = CachingAllocator()
        blocks = [block for block in (allocator.malloc(5 * MIB) for _ in range(4)) if block]
        assert mib(allocator) == (20, 20)
        for index in order:
            allocator.free(blocks[index])
        allocator.malloc(20 * MIB)
        assert mib(allocator) == (20, 20)


def test_segments_never_merge() -> None:
    """Two free segments of 12 MiB do not serve 24 MiB, though their addresses follow each other."""
    allocator = CachingAllocator()
    for block in [block for block in (allocator.malloc(12 * MIB) for _ in range(2)) if block]:
        allocator.free(block)
    allocator.malloc(24 * MIB)
    assert mib(allocator) == (24, 48)


def test_an_orphaned_16_bit_block_cannot_serve_the_32_bit_copy() -> None:
    """Weights cast from 16 to 32 bits one by one leave every 16-bit block behind;
    only half-sized ones can use them.
    """
    allocator = CachingAllocator()
    half = allocator.malloc(12 * MIB)
    allocator.malloc(24 * MIB)
    assert half is not None
    allocator.free(half)
    allocator.malloc(24 * MIB)
    assert mib(allocator) == (48, 60)
    allocator.malloc(12 * MIB)
    assert mib(allocator) == (60, 60)


def test_each_stream_has_its_own_pools() -> None:
    """A block freed on one stream does not serve another stream."""
    allocator = CachingAllocator()
    block = allocator.malloc(30 * MIB, stream=0)
    assert block is not None
    allocator.free(block)
    allocator.malloc(30 * MIB, stream=1)
    assert mib(allocator) == (30, 60)
    allocator.malloc(30 * MIB, stream=0)
    assert mib(allocator) == (60, 60)


# --- max_split_size -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_mib", "reuses"),
    [(30, False), (39, False), (60, False), (80, False), (81, True), (100, True)],
)
def test_an_oversize_block_serves_only_requests_near_its_size(request_mib: int, reuses: bool) -> None:
    """Limit 40 MiB, cached block 100 MiB: smaller requests never use it,
    oversize ones only from 100 - 20 MiB (exclusive) up.
    """
    allocator = CachingAllocator(OVERSIZE)
    block = allocator.malloc(100 * MIB)
    assert block is not None
    allocator.free(block)
    allocator.malloc(request_mib * MIB)
    if reuses:
        assert mib(allocator) == (100, 100), "an oversize block is never split"
    else:
        assert allocator.reserved_bytes == 100 * MIB + segment_bytes(request_mib * MIB)


def test_a_block_of_the_limit_is_oversize() -> None:
    """A cached block of exactly 40 MiB serves 40 MiB, but nothing smaller."""
    allocator = CachingAllocator(OVERSIZE)
    block = allocator.malloc(40 * MIB)
    assert block is not None
    allocator.free(block)
    allocator.malloc(38 * MIB)
    assert mib(allocator) == (38, 78)
    allocator.malloc(40 * MIB)
    assert mib(allocator) == (78, 78)


def test_a_full_card_gives_back_just_enough_oversize_blocks() -> None:
    """60 MiB beside cached 100 and 120 MiB on a card of 260: the 100 goes back, the 120 stays,
    and no retry is counted.
    """
    allocator = CachingAllocator(OVERSIZE, limit_bytes=260 * MIB)
    for block in [block for block in (allocator.malloc(size * MIB) for size in (100, 120)) if block]:
        allocator.free(block)
    assert allocator.malloc(60 * MIB) is not None
    assert mib(allocator) == (60, 180)
    assert allocator.n_retries == 0


def test_a_full_card_gives_back_several_oversize_blocks_from_the_largest() -> None:
    """No single block of 200 MiB is cached: 120 goes back, then 100, then there is room."""
    allocator = CachingAllocator(OVERSIZE, limit_bytes=300 * MIB)
    for block in [block for block in (allocator.malloc(size * MIB) for size in (50, 100, 120)) if block]:
        allocator.free(block)
    assert allocator.malloc(200 * MIB) is not None
    assert mib(allocator) == (200, 250)
    assert allocator.n_retries == 0


# --- a full card --------------------------------------------------------------------------------------------


def test_a_full_card_gives_the_cache_back_and_goes_on() -> None:
    """12 MiB freed, then 24 MiB: 36 fit without a retry; on 30 the 12 are given back first;
    on 23 nothing helps.
    """
    events = stream_of(("alloc", 0, 12), ("free", 0), ("alloc", 1, 24))
    assert replay(events, limit_bytes=36 * MIB).outcome == "fits"
    tight = replay(events, limit_bytes=30 * MIB)
    assert (tight.outcome, tight.n_retries, tight.n_device_frees) == ("fits_after_retry", 1, 1)
    assert tight.reserved_timeline.tolist() == [12 * MIB, 12 * MIB, 24 * MIB]
    assert replay(events, limit_bytes=23 * MIB).outcome == "out_of_memory"


def test_out_of_memory_says_where_and_how_much() -> None:
    """The report names event, phase, operator and module, what was asked and tried, and what was held."""
    events = [
        AllocEvent("alloc", 7, 12 * MIB, phase="load"),
        AllocEvent("alloc", 8, 10 * MIB + 1, phase="loss", op="aten::mm", module="model.lm_head"),
        AllocEvent("alloc", 9, 1, phase="backward"),
    ]
    result = replay(events, limit_bytes=20 * MIB)
    failure = result.out_of_memory
    assert failure is not None
    assert (failure.event, failure.phase, failure.op, failure.module) == (
        1,
        "loss",
        "aten::mm",
        "model.lm_head",
    )
    assert (failure.requested_bytes, failure.attempted_bytes) == (10 * MIB + 1, 12 * MIB)
    assert (failure.allocated_bytes, failure.reserved_bytes, failure.limit_bytes) == (
        12 * MIB,
        12 * MIB,
        20 * MIB,
    )
    assert len(result.reserved_timeline) == 1, "nothing is counted after the failure"
    assert [peak.phase for peak in result.phases] == ["load", "loss"]


def test_a_segment_in_partial_use_cannot_be_given_back() -> None:
    """5 MiB keep 20 MiB reserved, so that 30 MiB do not fit on 40 although 35 are free;
    with expandable segments they do.
    """
    events = stream_of(("alloc", 0, 5), ("alloc", 1, 5), ("free", 0), ("alloc", 2, 30))
    failure = replay(events, limit_bytes=40 * MIB).out_of_memory
    assert failure is not None
    assert (failure.allocated_bytes, failure.reserved_bytes) == (5 * MIB, 20 * MIB)
    assert replay(events, EXPANDABLE, limit_bytes=40 * MIB).outcome == "fits"


def test_a_negative_limit_is_refused() -> None:
    """A card of less than nothing is a usage error; a card of nothing serves nothing."""
    with pytest.raises(UsageError, match="negative"):
        replay([], limit_bytes=-1)
    assert replay(stream_of(("alloc", 0, 1)), limit_bytes=0).outcome == "out_of_memory"


# --- garbage collection -------------------------------------------------------------------------------------


def test_garbage_collection_frees_what_was_cached_longest() -> None:
    """Threshold 100 MiB of 200 allowed, reserved 110: at 70 MiB more the 60 cached first go back,
    the 40 cached last stay.
    """
    settings = AllocatorSettings(garbage_collection_threshold=0.5, memory_fraction=0.5)
    steps = (
        ("alloc", 0, 60),
        ("alloc", 1, 40),
        ("alloc", 2, 10),
        ("free", 0),
        ("free", 2),
        ("alloc", 3, 10),
        ("free", 1),
    )
    events = stream_of(*steps, ("alloc", 4, 70))
    collected = replay(events, settings, limit_bytes=400 * MIB)
    assert collected.reserved_timeline[-2:].tolist() == [110 * MIB, 120 * MIB]
    assert (collected.n_device_frees, collected.n_retries) == (1, 0)


def test_only_searches_for_large_blocks_make_cached_ones_older() -> None:
    """Small requests between the two frees do not count,
    so both blocks are of one age and go back together.
    """
    settings = AllocatorSettings(garbage_collection_threshold=0.5, memory_fraction=0.5)
    cached = [("alloc", 9, 0.5), ("alloc", 0, 60), ("alloc", 1, 50), ("free", 0)]
    small = [("alloc", 10, 0.5), ("alloc", 11, 0.5), ("free", 10)]
    events = stream_of(*cached, *small, ("free", 1), ("alloc", 2, 70))
    reserved = replay(events, settings, limit_bytes=400 * MIB).reserved_timeline
    assert reserved[-2:].tolist() == [112 * MIB, 72 * MIB]


def test_garbage_collection_needs_a_memory_fraction() -> None:
    """Without a fraction below 1 (or without a limit) PyTorch never collects, whatever the threshold says."""
    steps = (("alloc", 0, 60), ("alloc", 1, 50), ("free", 0), ("alloc", 2, 70))
    threshold = AllocatorSettings(garbage_collection_threshold=0.1)
    assert replay(stream_of(*steps), threshold, limit_bytes=400 * MIB).peak_reserved_bytes == 180 * MIB
    fraction = AllocatorSettings(garbage_collection_threshold=0.1, memory_fraction=0.5)
    assert replay(stream_of(*steps), fraction).peak_reserved_bytes == 180 * MIB
    assert replay(stream_of(*steps), fraction, limit_bytes=400 * MIB).peak_reserved_bytes == 120 * MIB


def test_a_memory_fraction_is_a_limit() -> None:
    """Half of 100 MiB does not hold 60, and the cache is given back before that is said."""
    result = replay(
        stream_of(("alloc", 0, 60)), AllocatorSettings(memory_fraction=0.5), limit_bytes=100 * MIB
    )
    assert (result.outcome, result.n_retries) == ("out_of_memory", 1)


# --- expandable segments ------------------------------------------------------------------------------------


def test_an_expandable_segment_grows_by_pages() -> None:
    """5 MiB map one page of 20; 30 more use the other 15 and map one more,
    where plain segments would hold 20 + 30.
    """
    allocator = CachingAllocator(EXPANDABLE)
    first, second = allocator.malloc(5 * MIB), allocator.malloc(30 * MIB)
    assert mib(allocator) == (35, 40)
    assert first is not None
    assert second is not None
    assert second.address == first.address + 5 * MIB
    allocator.malloc(1)
    assert allocator.reserved_bytes == 42 * MIB, "the small pool has pages of 2 MiB"


def test_expandable_blocks_are_split_down_to_512_bytes() -> None:
    """A remainder of 512 bytes is split off in the large pool too."""
    allocator = CachingAllocator(EXPANDABLE)
    allocator.malloc(20 * MIB - 512)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (20 * MIB - 512, 20 * MIB)


def test_whole_pages_inside_a_free_block_are_given_back_and_filled_again() -> None:
    """Of 60 MiB in use 10 + 40 + 10, freeing the 40 lets only the middle page go;
    the next large request fills the gap.
    """
    allocator = CachingAllocator(EXPANDABLE)
    blocks = [block for block in (allocator.malloc(size * MIB) for size in (10, 40, 10)) if block]
    start = blocks[0].address
    allocator.free(blocks[1])
    allocator.empty_cache()
    assert mib(allocator) == (20, 40)
    allocator.free(blocks[0])
    again = allocator.malloc(30 * MIB)
    assert again is not None
    assert again.address == start, "free pages before the gap, the gap and what follows are one block"
    assert mib(allocator) == (40, 60)
    allocator.free(again)
    allocator.free(blocks[2])
    allocator.empty_cache()
    assert mib(allocator) == (0, 0)


def test_holes_are_filled_before_the_end_of_the_segment() -> None:
    """11 MiB fit best into the last 12 MiB, but those can grow,
    so the hole of 15 MiB before them is taken.
    """
    allocator = CachingAllocator(EXPANDABLE)
    blocks = [block for block in (allocator.malloc(size * MIB) for size in (5, 15, 8)) if block]
    assert allocator.reserved_bytes == 40 * MIB
    hole = blocks[1].address
    allocator.free(blocks[1])
    taken = allocator.malloc(11 * MIB)
    assert taken is not None
    assert taken.address == hole


def test_between_equal_holes_the_lowest_address_is_taken() -> None:
    """Two holes of 15 MiB: the first one serves 11 MiB."""
    allocator = CachingAllocator(EXPANDABLE)
    blocks = [block for block in (allocator.malloc(size * MIB) for size in (15, 5, 15, 5)) if block]
    lowest = blocks[0].address
    allocator.free(blocks[2])
    allocator.free(blocks[0])
    taken = allocator.malloc(11 * MIB)
    assert taken is not None
    assert taken.address == lowest


def test_an_expandable_segment_on_a_full_card_moves_its_pages() -> None:
    """Cached pages of the small pool are given back when the large pool needs room,
    and what stays mapped is not lost.
    """
    events = [AllocEvent("alloc", index, MIB) for index in range(20)] + [
        AllocEvent("free", index, 0) for index in range(20)
    ]
    events += [
        AllocEvent("alloc", 100, 5 * MIB),
        AllocEvent("alloc", 101, 15 * MIB),
        AllocEvent("alloc", 102, MIB),
    ]
    result = replay(events, EXPANDABLE, limit_bytes=22 * MIB)
    assert result.outcome == "fits_after_retry"
    assert result.reserved_timeline[-3:].tolist() == [20 * MIB, 20 * MIB, 22 * MIB]


def test_an_expandable_request_larger_than_the_card_fails_cleanly() -> None:
    """A request above the address space of a segment is out of memory, and later smaller ones still work."""
    allocator = CachingAllocator(EXPANDABLE, limit_bytes=100 * MIB)
    assert allocator.malloc(GIB) is None
    assert allocator.malloc(30 * MIB) is not None
    assert mib(allocator) == (30, 40)


# --- other streams ------------------------------------------------------------------------------------------


def test_memory_that_another_stream_uses_is_not_reused() -> None:
    """After ``free_requested`` the block is active but not allocated;
    only the ``free`` that follows makes it reusable.
    """
    events = stream_of(
        ("alloc", 0, 30), ("free_requested", 0), ("alloc", 1, 30), ("free", 0), ("alloc", 2, 30)
    )
    result = replay(events)
    assert [n // MIB for n in result.allocated_timeline] == [30, 0, 30, 30, 60]
    assert [n // MIB for n in result.reserved_timeline] == [30, 30, 60, 60, 60]
    assert (result.peak_active_bytes, result.peak_allocated_bytes) == (60 * MIB, 60 * MIB)


def test_a_full_card_waits_for_the_other_stream() -> None:
    """On 40 MiB the allocator waits, gives the 30 back and goes on;
    the ``free`` that comes later has nothing left to do.
    """
    events = stream_of(
        ("alloc", 0, 30), ("free_requested", 0), ("alloc", 1, 30), ("free", 0), ("free", 1), ("alloc", 0, 30)
    )
    result = replay(events, limit_bytes=40 * MIB)
    assert (result.outcome, result.n_retries) == ("fits_after_retry", 1)
    assert [n // MIB for n in result.allocated_timeline] == [30, 0, 30, 30, 0, 30]
    assert [n // MIB for n in result.reserved_timeline] == [30, 30, 30, 30, 30, 30]


# --- the replay ---------------------------------------------------------------------------------------------


# --- events as files ----------------------------------------------------------------------------------------


# --- recorded histories -------------------------------------------------------------------------------------


def test_addresses_do_not_end() -> None:
    """Of a job that no card holds, segments come and go by petabytes: free blocks are still told apart."""
    allocator = CachingAllocator(limit_bytes=1 << 56)
    for more in range(1 << 8):
        block = allocator.malloc((1 << 55) + more * 2 * MIB)
        assert block is not None
        allocator.free(block)
    assert allocator.n_retries == (1 << 8) - 1
