"""The card as the allocator sees it: memory that can be reserved up to a limit, and addresses."""

from __future__ import annotations

from planner.allocator.blocks import UNLIMITED_BYTES
from planner.errors import UsageError
from planner.units import MIB


class Device:
    """Stands for ``cudaMalloc``, ``cudaFree``, ``cuMemCreate`` and ``cuMemRelease``.

    ``limit_bytes`` is what the allocator may reserve in all: the card without the CUDA context and other
    processes.  Addresses are handed out upwards and never twice; the real driver may reuse them, which only
    decides between blocks of equal size.
    """

    __slots__ = (
        "_next_address",
        "limit_bytes",
        "n_frees",
        "peak_reserved_bytes",
        "reserved_bytes",
    )

    def __init__(self, limit_bytes: int | None) -> None:
        if limit_bytes is not None and limit_bytes < 0:
            raise UsageError("the memory limit must not be negative")
        self.limit_bytes = limit_bytes
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self.n_frees = 0
        self._next_address = 2 * MIB

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

    def addresses(self, n_bytes: int) -> int:
        """Start of ``n_bytes`` of addresses that nothing else uses."""
        start = self._next_address
        self._next_address += n_bytes
        return start


def address_space_bytes(limit_bytes: int | None, page_bytes: int, request_bytes: int = 0) -> int:
    """Addresses that one expandable segment sets aside on a card of this size:
    9/8 of it in whole pages (``ExpandableSegment``).

    Never less than ``request_bytes``: a card without a limit serves every request, and one with a limit
    refuses those above it by its pages.
    """
    n_bytes = UNLIMITED_BYTES if limit_bytes is None else min(limit_bytes + limit_bytes // 8, UNLIMITED_BYTES)
    return max(-(-max(n_bytes, request_bytes) // page_bytes), 1) * page_bytes
