"""Host memory of a traced step: what paged optimizer states take there.

Such blocks are records like any other, so they go through the repetition of layers, and are no events of the
card.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from measure.trace.record import Record


@dataclass(frozen=True, slots=True)
class HostHolding:
    """Host memory of one name and kind in one process: what was asked for, and what it takes."""

    name: str
    kind: str
    requested_bytes: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory of the process while it trains; interpreter, libraries and checkpoint files are no part."""

    holdings: tuple[HostHolding, ...]

    @property
    def per_process_bytes(self) -> int:
        """Bytes that the process holds."""
        return sum(each.n_bytes for each in self.holdings)

    @property
    def per_node_bytes(self) -> int:
        """The same: there is one process."""
        return self.per_process_bytes

    @property
    def setup_peak_bytes(self) -> int:
        """The same: nothing more is taken while states are made."""
        return self.per_process_bytes

    @property
    def processes(self) -> int:
        """One."""
        return 1


NO_HOST_MEMORY = HostMemory(())


def host_memory(records: Iterable[Record]) -> HostMemory:
    """What the process holds: states are made once, and stay."""
    n_bytes = sum(record.block.n_bytes for record in records if record.block.on_host)
    return HostMemory((HostHolding("paged_optimizer", "managed", n_bytes, n_bytes),) if n_bytes else ())
