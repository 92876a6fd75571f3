"""The card as the allocator sees it: memory that can be reserved up to a limit, and addresses."""

from __future__ import annotations

from planner.allocator.blocks import UNLIMITED_BYTES
from planner.errors import UsageError
from planner.units import MIB

# Addresses are never used again: of a job far above any card all of them together pass 64 bits.
# The top of replay.c, 1 << 62, leaves the same remainder by every size of a page.
_TOP_ADDRESS = 1 << 102
_GRANULE_BYTES = 32 * MIB


class Addresses:
    """Addresses as the driver hands them out, which decides between free blocks of equal size.

    Memory is placed below all that was placed before, in whole granules of 32 MiB.  What a granule has left
    serves smaller requests, the lowest address first.  Seen in the histories of an H100 (driver 580.159,
    three jobs, 1,212 segments).  Addresses that were given back are never used again here; the driver does.
    """

    __slots__ = ("_bottom", "_left")

    def __init__(self) -> None:
        self._bottom = _TOP_ADDRESS
        self._left: list[tuple[int, int]] = []

    def take(self, n_bytes: int) -> int:
        """Start of ``n_bytes`` for a segment."""
        for place in range(len(self._left) - 1, -1, -1) if n_bytes < _GRANULE_BYTES else ():
            start, left = self._left[place]
            if left >= n_bytes:
                if left > n_bytes:
                    self._left[place] = start + n_bytes, left - n_bytes
                else:
                    del self._left[place]
                return start
        start = self.take_range(n_bytes, _GRANULE_BYTES)
        if n_bytes % _GRANULE_BYTES:
            self._left.append((start + n_bytes, -n_bytes % _GRANULE_BYTES))
        return start

    def take_range(self, n_bytes: int, page_bytes: int) -> int:
        """Start of ``n_bytes`` at a multiple of ``page_bytes``."""
        self._bottom = (self._bottom - n_bytes) // page_bytes * page_bytes
        return self._bottom


class Device:
    """Stands for ``cudaMalloc``, ``cudaFree``, ``cuMemCreate`` and ``cuMemRelease``.

    ``limit_bytes`` is what the allocator may reserve in all: the card without the CUDA context and other
    processes.
    """

    __slots__ = ("addresses", "limit_bytes", "n_frees", "peak_reserved_bytes", "reserved_bytes")

    def __init__(self, limit_bytes: int | None) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise UsageError("the memory limit must not be negative")
        self.limit_bytes = limit_bytes
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self.n_frees = 0
        self.addresses = Addresses()

    def reserve(self, n_bytes: int) -> bool:
        """Whether ``n_bytes`` more could be reserved; nothing changes if not."""
        reserved = self.reserved_bytes + n_bytes
        if self.limit_bytes is not None and reserved > self.limit_bytes:
            return False
        self.reserved_bytes = reserved
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved)
        return True

    def release(self, n_bytes: int) -> None:
        """Give ``n_bytes`` back."""
        self.reserved_bytes -= n_bytes
        self.n_frees += 1

    def map(self, address: int, n_bytes: int, stream: int) -> bool:
        """Reserve memory and put it behind addresses of an expandable segment of ``stream``."""
        del address, stream
        return self.reserve(n_bytes)

    def unmap(self, address: int, n_bytes: int, stream: int) -> None:
        """Give back the memory behind these addresses."""
        del address, stream
        self.release(n_bytes)


def address_space_bytes(limit_bytes: int | None, page_bytes: int, request_bytes: int = 0) -> int:
    """Addresses that one expandable segment sets aside on a card of this size:
    9/8 of it in whole pages (``ExpandableSegment``).

    Never less than ``request_bytes``: a card without a limit serves every request, and one with a limit
    refuses those above it by its pages.
    """
    n_bytes = UNLIMITED_BYTES if limit_bytes is None else min(limit_bytes + limit_bytes // 8, UNLIMITED_BYTES)
    return max(-(-max(n_bytes, request_bytes) // page_bytes), 1) * page_bytes
