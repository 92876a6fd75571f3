"""The records of a rank whose streams wait for each other: what another stream still uses when it is let go
of (``record_stream``) comes back when the host knows that the card has come so far.

The card does all in one order, as far behind the host as that lets it be: it has come to the last event that
the host has waited for.
"""

from __future__ import annotations

from collections import deque

from measure.trace.record import Record, TracedBlock
from measure.trace.sharding.shard_records import GATHER_STREAM, RankRecords

_SUM = "aten.add.Tensor"


class LateRecords(RankRecords):
    """Events are numbers that grow."""

    def __init__(self, first_id: int) -> None:
        super().__init__(first_id)
        self._given = 0
        self._late: deque[tuple[int, TracedBlock]] = deque()

    def free_behind(self, block: TracedBlock | None) -> None:
        """Let go of a block that comes back when the host has waited for an event behind this."""
        if block is not None:
            self.records.append(Record(False, block, self.place, waits=True))
            self._late.append((self.event(), block))

    def event(self) -> int:
        """An event behind all that the card was given so far."""
        self._given += 1
        return self._given

    def wait_for(self, event: int | None = None) -> None:
        """The host waits for an event, or for everything."""
        while self._late and (event is None or self._late[0][0] <= event):
            self.free(self._late.popleft()[1])

    def pass_on(self, record: Record) -> None:
        """Autograd sums gradients of a parameter with several uses where parameters were split, in the stream
        of the gathers.

        Source: torch 2.13 torch/csrc/autograd/input_buffer.cpp add, accumulate (``record_stream``).
        """
        block = record.block
        if block.role == "gradient_parts" and not record.alloc and block.stream != GATHER_STREAM:
            self.place = record.place
            self.free_behind(block)
            return
        if record.alloc and block.op == _SUM and block.role in ("gradients", "gradient_parts"):
            block.stream = GATHER_STREAM
        super().pass_on(record)
