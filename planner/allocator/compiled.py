"""The replay's loop as ``replay.c`` has it,
where a C compiler was there when the package was installed (``build_hook.py``).
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).with_name("replay.native")
N_STREAMS = 16
"""CUDA streams that the library keeps apart."""
# What all blocks together may take: sums of it fit into 64 bits.
_MOST_BYTES = 1 << 60
_ENDED, _NO_HOST_MEMORY = -1, -2


class _State(ctypes.Structure):
    """The first fields of the library's ``Memory``."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("limit", "allocated", "reserved", "most_allocated", "most_reserved", "n_retries")
    ]  # fmt: skip


@cache
def _library() -> Any:
    """The library; ``None`` where there is none, or none for this machine."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.memory_open.argtypes, library.memory_open.restype = [number, number], pointer
    library.memory_close.argtypes, library.memory_close.restype = [pointer], None
    library.release_cached.argtypes, library.release_cached.restype = [pointer], None
    library.run.argtypes = [pointer, pointer, number, pointer, pointer, pointer]
    library.run.restype = number
    library.count_free.argtypes, library.count_free.restype = [pointer, pointer], number
    return library


def is_compiled() -> bool:
    """Whether the library is there."""
    return _library() is not None


def packed(
    events: Sequence[int], sizes: Sequence[int], streams: Sequence[int]
) -> tuple[Any, Any, Any] | None:
    """The lists as arrays of the machine; ``None`` where the library is not there,
    or numbers are too large for it.
    """
    if _library() is None or sum(sizes) > _MOST_BYTES or max(streams, default=0) >= N_STREAMS:
        return None
    return array("q", events), array("q", sizes), array("B", streams)


class CompiledMemory:
    """One card while a program runs; the same as ``Memory`` of :mod:`planner.allocator.slots`,
    for packed programs.

    Raises:
        MemoryError: the host has no room for the list of blocks.
    """

    def __init__(self, limit_bytes: int | None, n_slots: int) -> None:
        self._library = _library()
        self._memory = self._library.memory_open(
            -1 if limit_bytes is None else min(limit_bytes, _MOST_BYTES), n_slots
        )
        if not self._memory:
            raise MemoryError
        self._state = _State.from_address(self._memory)

    def __del__(self) -> None:
        self._library.memory_close(self._memory)

    def __getattr__(self, name: str) -> int:
        number: int = getattr(self._state, name)
        return number

    def begin_phase(self) -> None:
        """What is reserved now is the most of the phase that begins."""
        self._state.most_reserved = self._state.reserved

    def release_cached(self) -> None:
        """Give back every segment without a block in use."""
        self._library.release_cached(self._memory)

    def run(self, events: Any, sizes: Any, streams: Any) -> tuple[int | None, int]:
        """Serve ``events``; (the one that failed, the one after which most was allocated),
        as places in the list.

        All three are arrays as :func:`packed` makes them.
        """
        place = ctypes.c_int64()
        by_slot = streams.buffer_info()[0] if streams else None
        addresses = events.buffer_info()[0], len(events), sizes.buffer_info()[0], by_slot
        end = self._library.run(self._memory, *addresses, ctypes.byref(place))
        if end == _NO_HOST_MEMORY:
            raise MemoryError
        return (None if end == _ENDED else end), place.value

    def free_blocks(self) -> tuple[int, int]:
        """How many free blocks there are, and the bytes of the largest."""
        largest = ctypes.c_int64()
        return self._library.count_free(self._memory, ctypes.byref(largest)), largest.value
