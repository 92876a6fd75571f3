"""The loops that ``replay.c`` has,
where a C compiler was there when the package was installed (``build_hook.py``).
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from planner.allocator.device import address_space_bytes
from planner.allocator.settings import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES

LIBRARY = Path(__file__).with_name("replay.native")
N_STREAMS, MOST_LAG = 16, 15
"""CUDA streams that the library keeps apart, and blocks of one that may wait for another."""
HOST_WAITS = 255
"""In place of a lag, of a slot without bytes: where it is freed, the host waits for all streams.

So many less where the last blocks of each pool are still in use then, up to ``MOST_LAG`` of them.
"""
# What all blocks together may take: sums of it fit into 64 bits.
_MOST_BYTES = 1 << 60
_NUMBER_BYTES = 8
_ENDED, _NO_HOST_MEMORY = -1, -2
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
# What each function of the library gives, and what it takes.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "memory_open": (_POINTER, [_NUMBER]),
    "memory_copy": (_POINTER, [_POINTER, _NUMBER]),
    "memory_close": (None, [_POINTER]),
    "let_grow": (None, [_POINTER, _NUMBER, _NUMBER]),
    # Only called by ``run``: a library without it is of before.
    "wait_for_streams": (_NUMBER, [_POINTER, _NUMBER]),
    "release_cached": (_NUMBER, [_POINTER]),
    "run": (_NUMBER, [_POINTER, _POINTER, _NUMBER, *[_POINTER] * 4]),
    "count_free": (_NUMBER, [_POINTER, _POINTER]),
    "held_at": (None, [_POINTER, _POINTER, _POINTER, _POINTER, _NUMBER, _NUMBER, _POINTER]),
    "fullest": (None, [_POINTER, _NUMBER, _POINTER, _POINTER, _NUMBER, _POINTER]),
    "shifted": (None, [_POINTER, _NUMBER, _NUMBER, _NUMBER, _POINTER]),
    "passing": (_NUMBER, [_POINTER, _NUMBER, _POINTER, _POINTER, _POINTER]),
    "in_bytes": (_NUMBER, [_POINTER, _POINTER, _NUMBER, _POINTER, _NUMBER, _POINTER]),
}


class _State(ctypes.Structure):
    """The first fields of the library's ``Memory``."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("limit", "keeps_cache", "allocated", "reserved", "most_allocated", "most_reserved",
        "n_retries")
    ]  # fmt: skip


@cache
def _library() -> Any:
    """The library; ``None`` where there is none, none for this machine,
    or one that was built before a function came.
    """
    try:
        library = ctypes.CDLL(str(LIBRARY))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library


def is_compiled() -> bool:
    """Whether the library is there."""
    return _library() is not None


def packed(
    events: Sequence[int], sizes: Sequence[int], streams: Sequence[int], lags: Sequence[int]
) -> tuple[Any, Any, Any, Any] | None:
    """The lists as arrays of the machine; ``None`` where the library is not there,
    or numbers are too large for it.
    """
    most_lag = max((lag for lag in {*lags} if lag < HOST_WAITS - MOST_LAG), default=0)
    too_many = max(streams, default=0) >= N_STREAMS or most_lag > MOST_LAG
    if _library() is None or sum(sizes) > _MOST_BYTES or too_many:
        return None
    columns = _as_array("B", streams), _as_array("B", lags)
    return _as_array("q", events), _as_array("q", sizes), *columns


def _as_array(code: Literal["q", "B"], numbers: Sequence[int]) -> Any:
    return numbers if isinstance(numbers, array) and numbers.typecode == code else array(code, numbers)


def _start(numbers: Any) -> int:
    """Where the numbers of an array lie."""
    address: int = numbers.buffer_info()[0]
    return address


def in_bytes(units: array[int], unit_bytes: array[float], values: Sequence[float]) -> array[int] | None:
    """As :func:`planner.allocator.columns.in_bytes`; ``None`` where the library is not there,
    or numbers are too large for it.
    """
    library = _library()
    if library is None:
        return None
    counts, sizes = array("d", values), array("q", bytes(_NUMBER_BYTES * len(units)))
    found = library.in_bytes(
        _start(units), _start(unit_bytes), len(units), _start(counts), _MOST_BYTES, _start(sizes)
    )
    return None if found < 0 else sizes


def held_at(events: Any, sizes: Any, kinds: Any, n_kinds: int, moments: Sequence[int]) -> list[list[int]]:
    """As :func:`planner.allocator.columns.held_at`, of arrays."""
    places, held = array("q", moments), array("q", bytes(_NUMBER_BYTES * n_kinds * len(moments)))
    addresses = _start(events), _start(sizes), _start(kinds), _start(places)
    _library().held_at(*addresses, len(places), n_kinds, _start(held))
    return [held[start : start + n_kinds].tolist() for start in range(0, len(held), n_kinds)]


def fullest(events: Any, sizes: Any, begins: Sequence[int]) -> list[int]:
    """As :func:`planner.allocator.columns.fullest`, of arrays."""
    places, most = array("q", begins), array("q", bytes(_NUMBER_BYTES * len(begins)))
    _library().fullest(_start(events), len(events), _start(sizes), _start(places), len(places), _start(most))
    return most.tolist()


def shifted(events: array[int], base: int, most: int) -> array[int] | None:
    """As :func:`planner.allocator.columns.shifted`; ``None`` where the library is not there."""
    library = _library()
    if library is None:
        return None
    moved = events[:]
    library.shifted(_start(events), len(events), base, most, _start(moved))
    return moved


def passing(events: array[int], n_slots: int) -> tuple[array[int], array[int], array[int]] | None:
    """As :func:`planner.allocator.columns.passing`; ``None`` where the library is not there."""
    library = _library()
    if library is None:
        return None
    seen, kept, places = array("B", bytes(n_slots)), events[:], events[:]
    columns = _start(seen), _start(kept), _start(places)
    n_kept = library.passing(_start(events), len(events), *columns)
    return kept[:n_kept], places[:n_kept], places[: n_kept - 1 if n_kept else None : -1]


class CompiledMemory:
    """One card while a program runs; the same as ``Memory`` of :mod:`planner.allocator.slot_memory`,
    for packed programs.  ``keeps_cache``: a request beyond the limit fails at once, and all is as it was
    before.

    Raises:
        MemoryError: the host has no room for the list of blocks.
    """

    def __init__(
        self,
        limit_bytes: int | None,
        n_slots: int,
        *,
        keeps_cache: bool = False,
        grows: bool = False,
        begun: int | None = None,
    ) -> None:
        """``grows``: segments do.  ``begun``: where the library has a card that ran already."""
        self._library, self._n_slots = _library(), n_slots
        self._memory = begun or self._library.memory_open(n_slots)
        if not self._memory:
            raise MemoryError
        self._state = _State.from_address(self._memory)
        self._state.limit = -1 if limit_bytes is None else min(limit_bytes, _MOST_BYTES)
        self._state.keeps_cache = keeps_cache
        if grows:
            pages = SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES
            spaces = [address_space_bytes(limit_bytes, page) for page in pages]
            self._library.let_grow(self._memory, *spaces)

    def __del__(self) -> None:
        self._library.memory_close(self._memory)

    def __getattr__(self, name: str) -> int:
        number: int = getattr(self._state, name)
        return number

    def under(self, limit_bytes: int) -> CompiledMemory:
        """A card with this limit in the same state."""
        begun = self._library.memory_copy(self._memory, self._n_slots)
        if not begun:
            raise MemoryError
        return CompiledMemory(limit_bytes, self._n_slots, begun=begun)

    def begin_phase(self) -> None:
        """What is reserved now is the most of the phase that begins."""
        self._state.most_reserved = self._state.reserved

    def release_cached(self) -> None:
        """Give back every segment without a block in use, or page where segments grow."""
        if self._library.release_cached(self._memory) == _NO_HOST_MEMORY:
            raise MemoryError

    def run(self, events: Any, sizes: Any, streams: Any, lags: Any) -> tuple[int | None, int]:
        """Serve ``events``; (the one that failed, the one after which most was allocated),
        as places in the list.

        All four are arrays as :func:`packed` makes them.
        """
        place = ctypes.c_int64()
        by_slot = [_start(each) if each else None for each in (streams, lags)]
        addresses = _start(events), len(events), _start(sizes), *by_slot
        end = self._library.run(self._memory, *addresses, ctypes.byref(place))
        if end == _NO_HOST_MEMORY:
            raise MemoryError
        return (None if end == _ENDED else end), place.value

    def free_blocks(self) -> tuple[int, int]:
        """How many free blocks there are, and the bytes of the largest."""
        largest = ctypes.c_int64()
        return self._library.count_free(self._memory, ctypes.byref(largest)), largest.value
