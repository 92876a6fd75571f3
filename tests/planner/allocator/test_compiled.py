"""The compiled card: what it takes, and that it is its own.

What it serves is compared with the loop of Python in ``test_slots.py``, what it reads in ``test_columns.py``.
"""

from __future__ import annotations

import pytest

from planner.allocator.compiled import (
    HOST_WAITS,
    MOST_LAG,
    N_STREAMS,
    CompiledMemory,
    is_compiled,
    packed,
)
from planner.units import MIB

pytestmark = pytest.mark.skipif(not is_compiled(), reason="installed without a compiler")
EVENTS, SIZES = [0, ~0, 1], [30 * MIB, 40 * MIB]


def card(limit_bytes: int | None, events: list[int], **flags: bool) -> tuple[CompiledMemory, int | None]:
    """A card after these events, and the one that failed."""
    program = packed(events, SIZES, [], [])
    assert program is not None
    memory = CompiledMemory(limit_bytes, len(SIZES), **flags)
    return memory, memory.run(*program)[0]


@pytest.mark.parametrize(
    ("sizes", "streams", "lags", "taken"),
    [
        ([1 << 60], [0], [0], True),
        ([1 << 60, 1], [0, 0], [0, 0], False),
        ([1], [N_STREAMS - 1], [MOST_LAG], True),
        ([1], [N_STREAMS], [0], False),
        ([1], [0], [MOST_LAG + 1], False),
        ([0], [0], [HOST_WAITS], True),
    ],
)
def test_numbers_beyond_the_library_are_left_to_python(
    sizes: list[int], streams: list[int], lags: list[int], taken: bool
) -> None:
    """Sums of more than 60 bits, more streams than it keeps apart, and more blocks that wait.

    A host that waits is no number of blocks.
    """
    assert (packed([0], sizes, streams, lags) is not None) is taken


def test_a_full_card_gives_its_cache_back_unless_it_keeps_it() -> None:
    """30 MiB are cached when 40 are asked for on a card of 50."""
    memory, failed = card(50 * MIB, EVENTS)
    assert (failed, memory.n_retries, memory.reserved, memory.allocated) == (None, 1, 40 * MIB, 40 * MIB)
    memory, failed = card(50 * MIB, EVENTS, keeps_cache=True)
    assert (failed, memory.n_retries, memory.reserved) == (2, 0, 30 * MIB)
    assert memory.free_blocks() == (1, 30 * MIB)


def test_a_copy_is_a_card_of_its_own() -> None:
    """The first one stays as it was, and may go before the copy does."""
    first, _ = card(50 * MIB, [0])
    larger = first.under(100 * MIB)
    program = packed([1], SIZES, [], [])
    assert program is not None
    assert larger.run(*program)[0] is None
    assert (first.reserved, larger.reserved) == (30 * MIB, 70 * MIB)
    del first
    larger.release_cached()
    assert larger.reserved == 70 * MIB


def test_a_phase_begins_with_what_is_reserved() -> None:
    """After the cache is given back that is nothing; segments that grow go by pages of 20 MiB."""
    for grows, most in ((False, 30 * MIB), (True, 40 * MIB)):
        memory, _ = card(None, [0, ~0], grows=grows)
        assert memory.most_reserved == most
        memory.release_cached()
        memory.begin_phase()
        assert (memory.most_reserved, memory.reserved) == (0, 0)
