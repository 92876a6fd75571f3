"""The model of the CUDA caching allocator: each rule with numbers worked out by hand,
and everything around the replay.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.documents.history import events_from_history, reserved_timeline, settings_from_history
from planner.allocator.events import (
    EVENTS_SCHEMA_ID,
    NO_BLOCK,
    AllocEvent,
    allocated_timeline,
    read_jsonl,
    write_jsonl,
)
from planner.allocator.replay import replay
from planner.allocator.settings import (
    AllocatorSettings,
    parse_settings,
    rounded_bytes,
    roundup_divisions,
    segment_bytes,
)
from planner.errors import InputFileError, NotModelledError, UnknownNameError, UsageError
from planner.units import GIB, KIB, MIB

EXPANDABLE = AllocatorSettings(expandable_segments=True)
OVERSIZE = AllocatorSettings(max_split_bytes=40 * MIB)


def mib(allocator: CachingAllocator) -> tuple[float, float]:
    """Allocated and reserved MiB."""
    return allocator.allocated_bytes / MIB, allocator.reserved_bytes / MIB


def stream_of(*steps: tuple[Any, ...], phase: str = "forward") -> list[AllocEvent]:
    """Events from ``("alloc", id, MiB)`` and ``("free", id)``."""
    return [
        AllocEvent(step[0], step[1], int(step[2] * MIB) if len(step) > 2 else 0, phase=phase)
        for step in steps
    ]


# --- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_bytes", "rounded", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (13 * MIB, 13 * MIB, 14 * MIB),
        (GIB, GIB, GIB),
    ],
)
def test_a_request_is_rounded_and_gets_a_segment_by_its_size(
    n_bytes: int, rounded: int, segment: int
) -> None:
    """Blocks are multiples of 512 bytes; segments are 2 MiB, 20 MiB or a multiple of 2 MiB;
    the first request reserves one.
    """
    assert rounded_bytes(n_bytes) == rounded
    assert segment_bytes(rounded) == segment
    allocator = CachingAllocator()
    assert allocator.malloc(n_bytes) is not None
    assert allocator.reserved_bytes == segment
    assert allocator.allocated_bytes == rounded or segment - rounded <= MIB


def test_large_segment_size_replaces_the_20_mib() -> None:
    """``large_segment_size_mb`` sets what a request between 1 and 10 MiB reserves,
    and leaves the others alone.
    """
    settings = AllocatorSettings(large_segment_bytes=12 * MIB)
    assert [segment_bytes(size, settings) for size in (MIB, 2 * MIB, 10 * MIB)] == [
        2 * MIB,
        12 * MIB,
        10 * MIB,
    ]


def test_powers_of_two_are_divided_for_rounding() -> None:
    """With 4 divisions 1200 goes to 1280, the first of 1024, 1280, 1536,
    1792 above it (the example in the PyTorch source).
    """
    settings = AllocatorSettings(roundup_divisions=(4,) * 16)
    assert rounded_bytes(1200 * MIB, settings) == 1280 * MIB
    assert rounded_bytes(1280 * MIB, settings) == 1280 * MIB
    assert rounded_bytes(1280 * MIB + 1, settings) == 1536 * MIB
    assert rounded_bytes(1800 * MIB, settings) == 2048 * MIB
    assert rounded_bytes(1024 * MIB, settings) == 1024 * MIB


def test_small_requests_are_not_divided() -> None:
    """Up to 512 bytes times the divisions, rounding to 512 stays; 1 division and 0 divisions are off."""
    settings = AllocatorSettings(roundup_divisions=(4,) * 16)
    assert rounded_bytes(1200, settings) == 1536
    assert rounded_bytes(2048 + 1, settings) == 2560
    assert rounded_bytes(4096 + 1, settings) == 5 * KIB
    assert rounded_bytes(1200 * MIB + 1, AllocatorSettings(roundup_divisions=(1,) * 16)) == 1200 * MIB + 512


# --- settings -----------------------------------------------------------------------------------------------


def test_settings_are_read_as_pytorch_reads_them() -> None:
    """The text of PyTorch's own test of its parser gives the values that it expects."""
    settings = parse_settings(
        "max_split_size_mb:40, max_non_split_rounding_mb:30,garbage_collection_threshold:0.5,"
        "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1],expandable_segments:True,"
        "pinned_use_background_threads:True"
    )
    assert settings.max_split_bytes == 40 * MIB
    assert settings.oversize_slack_bytes == 30 * MIB
    assert settings.garbage_collection_threshold == 0.5
    assert settings.expandable_segments
    sizes = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    assert [roundup_divisions(size * MIB, settings) for size in sizes] == [8, 8, 2, 4, 2, 4, 1, 1, 1]


def test_sizes_between_the_named_ones_are_not_divided() -> None:
    """Another text of PyTorch's test: 1024 MiB is not named, so it stays off;
    below the first and above the last are filled.
    """
    settings = parse_settings("roundup_power2_divisions:[128:8,256:16,512:1,2048:8,>:2]")
    sizes = (64, 128, 256, 512, 1024, 2048, 4096)
    assert [roundup_divisions(size * MIB, settings) for size in sizes] == [8, 8, 16, 1, 0, 8, 2]
    everywhere = parse_settings("roundup_power2_divisions:4")
    assert {roundup_divisions(size * MIB, everywhere) for size in sizes} == {4}


def test_no_text_means_the_defaults() -> None:
    """An empty text, and keys that do not move device memory, leave the defaults;
    the slack follows the large segment size.
    """
    assert (
        parse_settings("")
        == parse_settings("backend:native,pinned_num_register_threads:8,")
        == AllocatorSettings()
    )
    assert parse_settings("large_segment_size_mb:32").oversize_slack_bytes == 32 * MIB
    assert parse_settings("per_process_memory_fraction:0.9").memory_fraction == 0.9


@pytest.mark.parametrize(
    "text",
    [
        "max_split_size_mb:19",
        "max_split_size_mb:20,large_segment_size_mb:25",
        "max_non_split_rounding_mb:10",
        "large_segment_size_mb:10",
        "max_split_size_mb",
        "max_split_size_mb:",
        "max_split_size_mb:ten",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[64:8",
        "roundup_power2_divisions:[65:8]",
        "roundup_power2_divisions:[64:6]",
        "garbage_collection_threshold:1.0",
        "garbage_collection_threshold:0",
        "garbage_collection_threshold:-0.5",
        "per_process_memory_fraction:1.5",
        "expandable_segments:yes",
    ],
)
def test_settings_that_pytorch_refuses_are_refused(text: str) -> None:
    """A malformed text or a value out of range is a usage error."""
    with pytest.raises(UsageError):
        parse_settings(text)


def test_unknown_settings_are_not_guessed() -> None:
    """An unknown key names the nearest known one; another backend is another allocator,
    which is not modelled.
    """
    with pytest.raises(UnknownNameError, match="max_split_size_mb"):
        parse_settings("max_split_size:40")
    with pytest.raises(NotModelledError, match="cudaMallocAsync"):
        parse_settings("backend:cudaMallocAsync")


def test_a_list_of_divisions_has_one_per_power_of_two() -> None:
    """Settings built directly are checked too."""
    with pytest.raises(UsageError, match="16 numbers"):
        AllocatorSettings(roundup_divisions=(4, 4))


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


def test_peaks_by_phase_start_from_what_is_held() -> None:
    """Each phase counts what it began with; a phase that comes again keeps its higher peak;
    phases are in order of time.
    """
    events = [
        *stream_of(("alloc", 0, 30), phase="load"),
        *stream_of(("alloc", 1, 20), ("free", 1), phase="forward"),
        *stream_of(("free", 0), ("alloc", 2, 12), phase="backward"),
        *stream_of(("alloc", 3, 14), phase="forward"),
    ]
    result = replay(events)
    # Best fit splits the 12 MiB off the cached 20,
    # so the 14 MiB after them come off the cached 30 and nothing is reserved.
    assert [
        (peak.phase, peak.allocated_bytes // MIB, peak.reserved_bytes // MIB) for peak in result.phases
    ] == [
        ("load", 30, 30),
        ("forward", 50, 50),
        ("backward", 30, 50),
    ]
    assert (result.peak_allocated_event, result.peak_reserved_event) == (1, 1)


def test_an_emptied_cache_is_replayed() -> None:
    """The cached 30 MiB go back to the card, so that the 20 after them need a segment; what another stream
    still uses is waited for, and its free that follows changes nothing.
    """
    made = stream_of(("alloc", 0, 30), ("alloc", 1, 40), ("free", 0))
    emptied, after = stream_of(("empty_cache", NO_BLOCK)), stream_of(("alloc", 2, 20))
    result = replay([*made, *emptied, *after])
    assert [each // MIB for each in result.reserved_timeline] == [30, 70, 70, 40, 60]
    assert [each // MIB for each in result.held_bytes] == [30, 40, 0, 0, 20]
    assert allocated_timeline([*made, *emptied, *after])[-2:] == [40 * MIB, 60 * MIB]
    assert replay([*made, *after]).reserved_timeline[-1] == 70 * MIB
    late = stream_of(("alloc", 0, 30), ("free_requested", 0), ("empty_cache", NO_BLOCK), ("free", 0))
    assert [each // MIB for each in replay(late).reserved_timeline] == [30, 30, 0, 0]


def test_an_empty_stream_holds_nothing() -> None:
    """No events, no peaks, no phases, and it fits on any card."""
    result = replay([], limit_bytes=0)
    assert (result.peak_reserved_bytes, result.phases, result.outcome) == (0, (), "fits")
    assert (result.peak_allocated_event, result.peak_reserved_event) == (None, None)


def test_an_allocation_of_no_bytes_takes_nothing() -> None:
    """PyTorch keeps no block for an empty tensor; its free is accepted, deferred or not."""
    events = stream_of(("alloc", 0, 0), ("alloc", 1, 0), ("free", 0), ("free_requested", 1), ("free", 1))
    result = replay(events, limit_bytes=0)
    assert (result.outcome, result.peak_reserved_bytes, len(result.held_bytes)) == ("fits", 0, 5)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (stream_of(("free", 3)), "event 0: block 3 is freed but not allocated"),
        (stream_of(("alloc", 3, 1), ("alloc", 3, 1)), "event 1: block 3 is allocated twice"),
        (stream_of(("alloc", 3, 1), ("free", 3), ("free", 3)), "event 2: block 3 is freed but not allocated"),
        (
            stream_of(("alloc", 3, 1), ("free_requested", 3), ("alloc", 3, 1)),
            "event 2: block 3 is allocated twice",
        ),
        (
            stream_of(("alloc", 3, 1), ("free_requested", 3), ("free_requested", 3)),
            "event 2: block 3 is freed but not allocated",
        ),
    ],
)
def test_an_impossible_stream_is_refused(events: list[AllocEvent], message: str) -> None:
    """The replay and the plain walk name the event that cannot be."""
    for walk in (replay, allocated_timeline):
        with pytest.raises(UsageError, match=message):
            walk(events)


def test_a_negative_size_is_refused() -> None:
    """A size below zero is a broken trace, not a small block."""
    with pytest.raises(UsageError, match="negative"):
        replay([AllocEvent("alloc", 0, -1)])


def test_two_hundred_thousand_events_a_second() -> None:
    """A replay is fast enough to be run for many limits and settings."""
    draw = random.Random(1)
    events: list[AllocEvent] = []
    live: list[int] = []
    for index in range(40_000):
        if len(live) > 500 or (live and draw.random() < 0.45):
            events.append(AllocEvent("free", live.pop(draw.randrange(len(live))), 0))
        else:
            events.append(AllocEvent("alloc", index, draw.randrange(1, 8 * MIB)))
            live.append(index)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        replay(events)
        seconds.append(time.process_time() - start)
    assert len(events) / min(seconds) > 200_000


# --- events as files ----------------------------------------------------------------------------------------


def test_events_survive_a_file(tmp_path: Path) -> None:
    """What is written is read back unchanged, text in any script included, and no temporary file stays."""
    events = [
        AllocEvent("alloc", 1, 513, 2, "forward", "weights", "aten::mm", 'läyer"0\n'),
        AllocEvent("free", 1, 513),
        AllocEvent("empty_cache", NO_BLOCK, 0),
    ]
    write_jsonl(tmp_path / "events.jsonl", events)
    assert read_jsonl(tmp_path / "events.jsonl") == events
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_requested_bytes_over_time() -> None:
    """The walk counts requested bytes; memory that waits for another stream no longer counts."""
    events = [
        AllocEvent("alloc", 0, 5),
        AllocEvent("alloc", 1, 7),
        AllocEvent("free_requested", 0, 5),
        AllocEvent("free", 0, 5),
    ]
    assert allocated_timeline([*events, AllocEvent("free", 1, 7)]) == [5, 12, 7, 7, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[", "not valid JSON"),
        ("{}", "not an event"),
        ('["alloc",1,512,0,"","",""]', "not an event"),
        ('["alloc",1,512.0,0,"","","",""]', "not an event"),
        ('["alloc",true,512,0,"","","",""]', "not an event"),
        ('["alloc",1,-512,0,"","","",""]', "zero or more"),
        ('["alloc",1,99999999999999999999,0,"","","",""]', "64 bits"),
        ('["grow",1,512,0,"","","",""]', "action must be"),
        ("[" * 70_000, "a line of more than"),
    ],
)
def test_a_bad_line_names_its_place(tmp_path: Path, line: str, message: str) -> None:
    """Any line that is not an event is refused with file and line number."""
    path = tmp_path / "events.jsonl"
    write_jsonl(path, [AllocEvent("alloc", 0, 1)])
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(InputFileError, match=message) as caught:
        read_jsonl(path)
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.parametrize(
    "content", ["", "[]\n", '{"schema": "other/1"}\n', json.dumps({"schema": EVENTS_SCHEMA_ID}) + "\n"]
)
def test_a_file_without_the_header_is_refused(tmp_path: Path, content: str) -> None:
    """The first line must name the schema and the fields; an empty file is no stream."""
    path = tmp_path / "events.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputFileError, match=r"header|must name"):
        read_jsonl(path)


def test_a_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    """Reading and writing where nothing can be are errors with the path, not tracebacks."""
    with pytest.raises(InputFileError, match="no such file"):
        read_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(InputFileError, match="cannot be written"):
        write_jsonl(tmp_path / "none" / "events.jsonl", [])


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """An interruption while writing keeps what was there, and leaves no temporary file."""
    path = tmp_path / "events.jsonl"
    write_jsonl(path, [AllocEvent("alloc", 0, 1)])

    def interrupted() -> Any:
        yield AllocEvent("alloc", 1, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_jsonl(path, interrupted())
    assert read_jsonl(path) == [AllocEvent("alloc", 0, 1)]
    assert [item.name for item in tmp_path.iterdir()] == ["events.jsonl"]


# --- recorded histories -------------------------------------------------------------------------------------


def entry(action: str, address: int, n_bytes: int, time_us: int, stream: int = 0) -> dict[str, Any]:
    """One entry of a history as PyTorch writes it."""
    frames = [{"filename": "model.py", "line": 3, "name": "forward"}] if action == "alloc" else []
    return {
        "action": action,
        "addr": address,
        "size": n_bytes,
        "stream": stream,
        "time_us": time_us,
        "frames": frames,
    }


def small_history() -> dict[str, Any]:
    """A history by hand: 1 byte, 3 MiB on another stream that waits before its free completes, and 12 MiB."""
    side = 94_000_000
    trace = [
        entry("segment_alloc", 0x1000_0000, 2 * MIB, 10),
        entry("alloc", 0x1000_0000, 1, 11),
        entry("segment_alloc", 0x2000_0000, 20 * MIB, 20, side),
        entry("alloc", 0x2000_0000, 3 * MIB, 21, side),
        entry("free_requested", 0x1000_0000, 1, 30),
        entry("free_completed", 0x1000_0000, 1, 30),
        entry("free_requested", 0x2000_0000, 3 * MIB, 31, side),
        entry("segment_alloc", 0x3000_0000, 12 * MIB, 40),
        entry("alloc", 0x3000_0000, 12 * MIB, 41),
        entry("free_completed", 0x2000_0000, 3 * MIB, 42, side),
        entry("alloc", 0x1000_0000, 700, 43),
        entry("segment_free", 0x2000_0000, 20 * MIB, 50, side),
        {"action": "oom", "device_free": 5, "size": 1, "stream": 0, "time_us": 60},
        entry("snapshot", 0, 0, 70),
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "expandable_segments": False}
    return {
        "segments": [{"segment_pool_id": [0, 0]}],
        "device_traces": [[], trace],
        "allocator_settings": settings,
    }


def test_a_history_becomes_events() -> None:
    """Requests stay, the allocator's own moves go; a free that waits is two events,
    streams and blocks get small numbers.
    """
    events = events_from_history(small_history(), device=1, phase_marks=[(0, "load"), (30, "forward")])
    assert [(event.action, event.block, event.n_bytes, event.stream, event.phase) for event in events] == [
        ("alloc", 1, 1, 0, "load"),
        ("alloc", 3, 3 * MIB, 1, "load"),
        ("free", 1, 1, 0, "forward"),
        ("free_requested", 3, 3 * MIB, 1, "forward"),
        ("alloc", 8, 12 * MIB, 0, "forward"),
        ("free", 3, 3 * MIB, 1, "forward"),
        ("alloc", 10, 700, 0, "forward"),
    ]
    assert events[0].op == "forward"
    assert events_from_history(small_history(), device=0) == []


def test_a_replayed_history_reserves_what_was_recorded() -> None:
    """The replay of the history peaks where its own segment entries do, and the history survives JSON."""
    history = json.loads(json.dumps(small_history()))
    recorded = reserved_timeline(history, device=1)
    assert [n // MIB for n in recorded] == [2, 22, 34, 14]
    settings = settings_from_history(history)
    assert settings.max_split_bytes == 64 * MIB
    assert replay(events_from_history(history, device=1), settings).peak_reserved_bytes == max(recorded)


def test_pages_of_expandable_segments_count_as_reserved() -> None:
    """``segment_map`` and ``segment_unmap`` move the recorded bytes as segments do."""
    trace = [entry("segment_map", 0, 40 * MIB, 1), entry("segment_unmap", 0, 20 * MIB, 2)]
    assert reserved_timeline({"device_traces": [trace]}) == [40 * MIB, 20 * MIB]


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ([entry("free_requested", 1, 1, 1)], "entry 0: address 1 is freed but was never allocated"),
        ([entry("alloc", 1, 1, 1), entry("free_completed", 1, 1, 1)], "entry 1: address 1 is freed"),
        ([entry("alloc", 1, 1, 1), entry("alloc", 1, 1, 1)], "entry 1: address 1 is allocated twice"),
        ([entry("alloc", 1, -1, 1)], "'size' must be"),
        ([{**entry("alloc", 1, 1, 1), "addr": "1"}], "'addr' must be"),
        ([entry("defragment", 1, 1, 1)], "unknown action 'defragment'"),
        (["alloc"], "unknown action"),
    ],
)
def test_a_history_that_cannot_be_is_refused(trace: list[Any], message: str) -> None:
    """Truncated, malformed and unknown entries are named by number, never skipped."""
    with pytest.raises(UsageError, match=message):
        events_from_history({"device_traces": [trace]})


def test_what_is_no_history_is_refused() -> None:
    """No traces, a device that is not there, segments freed that never were, settings that are missing,
    marks out of order.
    """
    with pytest.raises(UsageError, match="no device_traces"):
        events_from_history({"segments": []})
    with pytest.raises(UsageError, match="no device 2"):
        events_from_history(small_history(), device=2)
    with pytest.raises(UsageError, match="more is released"):
        reserved_timeline({"device_traces": [[entry("segment_free", 1, 1, 1)]]})
    with pytest.raises(UsageError, match="no allocator_settings"):
        settings_from_history({"device_traces": []})
    with pytest.raises(UsageError, match="order of time"):
        events_from_history(small_history(), device=1, phase_marks=[(30, "forward"), (0, "load")])


def test_private_pools_are_refused() -> None:
    """CUDA graphs keep memory in pools of their own, which are not modelled:
    no number is better than a wrong one.
    """
    history = small_history()
    history["segments"] = [{"segment_pool_id": [1, 0]}]
    with pytest.raises(NotModelledError, match="private memory pools"):
        events_from_history(history, device=1)
    with pytest.raises(NotModelledError, match="private memory pools"):
        events_from_history({"device_traces": [[{**entry("alloc", 1, 1, 1), "pool_id": (0, 2)}]]})
