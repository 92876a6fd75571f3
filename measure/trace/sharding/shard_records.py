"""The stream of records that a sharding runtime writes: those of the modules,
and its own allocations and frees between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from measure.trace.host_records import HOST_STREAMS
from measure.trace.record import HostKind, HostName, Place, Record, Role, TracedBlock, emptied
from planner.allocator.settings import SMALL_REQUEST_BYTES

MAIN_STREAM, GATHER_STREAM, REDUCE_STREAM = 0, 1, 2
Steps = list[list[list[Record]]]
"""What the optimizer allocates and frees in each step, by group."""


@dataclass(frozen=True, slots=True)
class TracedPurpose:
    """What an allocation is for: the runtime's own name for it, the role that becomes its term,
    and the pool it is from.
    """

    name: str
    role: Role
    stream: int = MAIN_STREAM
    module: str = ""

    def on(self, stream: int) -> TracedPurpose:
        """The same from the pool of ``stream``."""
        return replace(self, stream=stream)


class RankRecords:
    """The records of one rank, as they are written.  ``place`` is where the program is."""

    def __init__(self, first_id: int, *, one_stream: bool = False) -> None:
        self.records: list[Record] = []
        self.place = Place("load", 0)
        self._next_id, self._one_stream = first_id, one_stream
        self._waiting: dict[tuple[int, bool], list[TracedBlock]] = {}

    def take(self, n_bytes: int, what: TracedPurpose) -> TracedBlock:
        """Allocate; the caller frees it or keeps it."""
        on_card = what.stream not in HOST_STREAMS.values()
        stream = MAIN_STREAM if self._one_stream and on_card else what.stream
        block = TracedBlock(
            self._next_id, n_bytes, self.place, what.name, what.module, role=what.role, stream=stream
        )
        self._next_id += 1
        self.records.append(Record(True, block, self.place))
        return block

    def keep_on_host(self, n_bytes: int, name: str, host_name: HostName, *, pinned: bool) -> TracedBlock:
        """Allocate host memory; pinned memory is copied from pageable memory,
        which goes at once (``Tensor.pin_memory``).
        """
        pageable = self._on_host(n_bytes, name, host_name, "pageable")
        if not pinned:
            return pageable
        kept = self._on_host(n_bytes, name, host_name, "pinned")
        self.free(pageable)
        return kept

    def pin(self, n_bytes: int, name: str) -> TracedBlock:
        """Allocate pinned memory as the target of a gradient's copy, which needs no pageable one."""
        return self._on_host(n_bytes, name, "offloaded_gradients", "pinned")

    def _on_host(self, n_bytes: int, name: str, host_name: HostName, kind: HostKind) -> TracedBlock:
        block = self.take(n_bytes, TracedPurpose(name, "", HOST_STREAMS[kind]))
        block.host_name = host_name
        return block

    def free(self, *blocks: TracedBlock | None) -> None:
        """Free what was taken, or a block of the modules that the runtime has taken over."""
        self.records += [Record(False, block, self.place) for block in blocks if block is not None]

    def free_late(self, block: TracedBlock, lag: int) -> None:
        """Free what another stream still uses (``record_stream``):
        it comes back when ``lag`` later blocks of its pool have been freed, or the host waits.
        Where all is in one stream it comes back at once.
        """
        if self._one_stream:
            self.free(block)
            return
        self.records.append(Record(False, block, self.place, waits=True))
        waiting = self._waiting.setdefault((block.stream, block.n_bytes <= SMALL_REQUEST_BYTES), [])
        waiting.append(block)
        while len(waiting) > lag:
            self.free(waiting.pop(0))

    def wait(self, left: int = 0) -> None:
        """The host waits for all streams: what they used can be used again, but for the last ``left`` blocks
        of each pool.
        """
        for waiting in self._waiting.values():
            while len(waiting) > left:
                self.free(waiting.pop(0))

    def brief(self, n_bytes: int, what: TracedPurpose) -> None:
        """Allocate and free at once: a temporary of one call."""
        self.free(self.take(n_bytes, what))

    def empty_cache(self) -> None:
        """``get_accelerator().empty_cache()``: cached segments go back to the card."""
        self.records.append(emptied(self.place))

    def pass_on(self, record: Record) -> None:
        """A record of the modules, unchanged."""
        self.place = record.place
        self.records.append(record)

    def splice(self, records: Iterable[Record]) -> list[TracedBlock]:
        """Records of another recording, at this place and with numbers of their own;
        the blocks that it leaves allocated.
        """
        made: dict[int, TracedBlock] = {}
        for record in records:
            if record.alloc:
                made[record.block.id] = replace(record.block, id=self._next_id, place=self.place)
                self._next_id += 1
                self.records.append(Record(True, made[record.block.id], self.place))
            elif record.block.id in made:
                self.free(made.pop(record.block.id))
        return list(made.values())
