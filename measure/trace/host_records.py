"""Host memory of a traced step: what offload and paged optimizer states put there,
by name and by kind of memory.

Such blocks are records like any other, so they go through the repetition of layers.  They have a kind of
memory in place of a stream, and are no events of the card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from measure.trace.record import HostKind, HostName, Record

HOST_NAMES: tuple[HostName, ...] = get_args(HostName)
# In place of the number of a stream, which is never negative.
HOST_STREAMS: dict[HostKind, int] = {"pageable": -1, "pinned": -2, "managed": -3}
_KINDS: dict[int, HostKind] = {stream: kind for kind, stream in HOST_STREAMS.items()}
_LOADING = ("load", "adapters")


@dataclass(frozen=True, slots=True)
class HostHolding:
    """Host memory of one name and kind in one process: what was asked for, and what it takes,
    which rounding can make more.
    """

    name: HostName
    kind: HostKind
    requested_bytes: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory of one process, and of the ``processes`` of a node, which hold as much each.

    ``holdings`` are those of the moment of training when most was held; ``setup_peak_bytes`` is the most of
    one process at any moment, copies while buffers are made included.  The interpreter, libraries and
    checkpoint files are no part of it.
    """

    holdings: tuple[HostHolding, ...]
    setup_peak_bytes: int
    processes: int

    @property
    def per_process_bytes(self) -> int:
        """Most bytes that a process holds while it trains."""
        return sum(each.n_bytes for each in self.holdings)

    @property
    def per_node_bytes(self) -> int:
        """The same for all processes of a node."""
        return self.per_process_bytes * self.processes

    def bytes_of(self, kind: HostKind) -> int:
        """The part of a process's bytes that is memory of ``kind``."""
        return sum(each.n_bytes for each in self.holdings if each.kind == kind)


NO_HOST_MEMORY = HostMemory((), 0, 1)


def is_on_host(record: Record) -> bool:
    """Whether a record is of host memory."""
    return record.block.host_name is not None


def host_memory(records: Sequence[Record], *, rounds_pinned: bool, processes: int) -> HostMemory:
    """What one process holds.  ``rounds_pinned``: pinned blocks are powers of two (see :class:`_Host`)."""
    host = _Host(rounds_pinned)
    training = False
    for record in records:
        if not training and record.place.stage not in _LOADING:
            training = True
            host.look(training=True)  # what set-up has left is held, whether or not anything comes to it
        name = record.block.host_name
        if name is not None:
            host.change(name, record)
            host.look(training=training)
    return HostMemory(host.most, host.setup_peak_bytes, processes)


class _Host:
    """Host memory as it changes.

    Pinned blocks are rounded up to powers of two, and freed ones are kept for requests of their own
    size.  Source: torch 2.13 ATen/core/CachingHostAllocator.h (``allocate``: PowerOf2Ceil; one free list per
    power of two).
    """

    def __init__(self, rounds_pinned: bool) -> None:
        self._rounds = rounds_pinned
        self._held: dict[tuple[HostName, HostKind], list[int]] = {}
        self._cached: dict[int, int] = {}
        self._cached_bytes = 0
        self.most: tuple[HostHolding, ...] = ()
        self._most_bytes = 0
        self.setup_peak_bytes = 0

    def change(self, name: HostName, record: Record) -> None:
        """Count a block in, or out."""
        n_bytes, kind = record.block.n_bytes, _KINDS[record.block.stream]
        pinned = kind == "pinned"
        size = _power_of_two(n_bytes) if pinned and self._rounds else n_bytes
        sign = 1 if record.alloc else -1
        held = self._held.setdefault((name, kind), [0, 0])
        held[0] += sign * n_bytes
        held[1] += sign * size
        if pinned and not record.alloc:
            self._cached[size] = self._cached.get(size, 0) + 1
            self._cached_bytes += size
        elif pinned and self._cached.get(size):
            self._cached[size] -= 1
            self._cached_bytes -= size

    def look(self, *, training: bool) -> None:
        """Remember this moment if nothing like it has been."""
        total = self._cached_bytes + sum(taken for _, taken in self._held.values())
        self.setup_peak_bytes = max(self.setup_peak_bytes, total)
        if training and total > self._most_bytes:
            self._most_bytes, self.most = total, self._now()

    def _now(self) -> tuple[HostHolding, ...]:
        found = [HostHolding(name, kind, *sizes) for (name, kind), sizes in self._held.items() if sizes[1]]
        if self._cached_bytes:
            found.append(HostHolding("pinned_cache", "pinned", 0, self._cached_bytes))
        return tuple(sorted(found, key=lambda each: (HOST_NAMES.index(each.name), each.kind)))


def _power_of_two(n_bytes: int) -> int:
    return 1 << max(n_bytes - 1, 0).bit_length()
