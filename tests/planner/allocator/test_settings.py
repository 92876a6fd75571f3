"""Sizes of blocks and segments, and settings as PyTorch reads them."""

from __future__ import annotations

import pytest

from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.settings import (
    AllocatorSettings,
    parse_settings,
    rounded_bytes,
    roundup_divisions,
    segment_bytes,
)
from planner.errors import NotModelledError, UnknownNameError, UsageError
from planner.units import GIB, KIB, MIB
from planner.words import words


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
    list(
        words(
            """
            max_split_size_mb:19 max_split_size_mb:20,large_segment_size_mb:25
            max_non_split_rounding_mb:10 large_segment_size_mb:10 max_split_size_mb max_split_size_mb:
            max_split_size_mb:ten roundup_power2_divisions:3 roundup_power2_divisions:[64:8
            roundup_power2_divisions:[65:8] roundup_power2_divisions:[64:6]
            garbage_collection_threshold:1.0 garbage_collection_threshold:0
            garbage_collection_threshold:-0.5 per_process_memory_fraction:1.5 expandable_segments:yes
            """
        )
    ),
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
