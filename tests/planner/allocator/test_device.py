"""The card as the allocator sees it."""

from __future__ import annotations

import itertools

import pytest

from planner.allocator.blocks import UNLIMITED_BYTES
from planner.allocator.device import Addresses, Device, address_space_bytes
from planner.errors import UsageError
from planner.units import GIB, MIB


def test_a_card_gives_what_it_has_and_not_a_byte_more() -> None:
    """A request that it cannot serve changes nothing; the peak stays when memory is given back."""
    device = Device(10 * MIB)
    assert device.reserve(10 * MIB)
    assert not device.reserve(1)
    assert (device.reserved_bytes, device.peak_reserved_bytes, device.n_frees) == (10 * MIB, 10 * MIB, 0)
    device.release(4 * MIB)
    assert device.reserve(4 * MIB)
    assert (device.reserved_bytes, device.peak_reserved_bytes, device.n_frees) == (10 * MIB, 10 * MIB, 1)


def test_a_card_without_a_limit_serves_everything_and_one_of_nothing_nothing() -> None:
    """No bytes fit on any card."""
    assert Device(None).reserve(1 << 60)
    assert not Device(0).reserve(1)
    assert Device(0).reserve(0)
    with pytest.raises(UsageError, match="must not be negative"):
        Device(-1)


def test_pages_count_as_segments_do() -> None:
    """Mapping reserves and unmapping gives back, wherever the addresses are."""
    device = Device(4 * MIB)
    assert device.map(0, 4 * MIB, stream=1)
    assert not device.map(8 * MIB, 2 * MIB, stream=0)
    device.unmap(0, 2 * MIB, stream=1)
    assert (device.reserved_bytes, device.n_frees) == (2 * MIB, 1)


def test_segments_lie_below_each_other_in_granules() -> None:
    """Each below the last one, at a multiple of 32 MiB; the lowest rest of a granule serves what fits."""
    addresses = Addresses()
    first, second = addresses.take(130 * MIB), addresses.take(130 * MIB)
    assert (first % (32 * MIB), first - second) == (0, 160 * MIB)
    assert addresses.take(26 * MIB) == second + 130 * MIB
    assert addresses.take(20 * MIB) == first + 130 * MIB
    assert addresses.take(4 * MIB) == second + 156 * MIB
    assert addresses.take(20 * MIB) == second - 32 * MIB


def test_no_address_is_handed_out_twice() -> None:
    """Whatever was asked for, in segments and in ranges of growing ones."""
    addresses = Addresses()
    sizes = [2, 20, 1040, 26, 32, 2, 12, 130, 20, 2, 6, 64, 2] * 5
    taken = [(addresses.take(n * MIB), n * MIB) for n in sizes]
    taken.append((addresses.take_range(90 * GIB, 20 * MIB), 90 * GIB))
    assert taken[-1][0] % (20 * MIB) == 0
    taken.sort()
    assert all(start + n <= after for (start, n), (after, _) in itertools.pairwise(taken))


@pytest.mark.parametrize(
    ("limit", "request_bytes", "expected"),
    [
        (16 * MIB, 0, 18 * MIB),
        (15 * MIB, 0, 18 * MIB),
        (0, 0, 2 * MIB),
        (16 * MIB, 40 * MIB + 1, 42 * MIB),
        (None, 0, UNLIMITED_BYTES),
        (None, 2 * UNLIMITED_BYTES, 2 * UNLIMITED_BYTES),
        (80 * GIB, 0, 90 * GIB),
    ],
)
def test_a_growing_segment_sets_aside_nine_eighths_of_the_card(
    limit: int | None, request_bytes: int, expected: int
) -> None:
    """In whole pages of 2 MiB, one at least, and as much as is asked for."""
    assert address_space_bytes(limit, 2 * MIB, request_bytes) == expected
