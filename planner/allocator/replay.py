"""A stream of allocation events, replayed through the model of the caching allocator."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from planner.allocator.blocks import Block
from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.events import AllocEvent
from planner.allocator.settings import DEFAULT_SETTINGS, AllocatorSettings, segment_bytes
from planner.errors import UsageError

Outcome = Literal["fits", "fits_after_retry", "out_of_memory"]


@dataclass(frozen=True, slots=True)
class PhasePeaks:
    """The most bytes held during one phase; what it started with counts too (as after
    ``reset_peak_memory_stats``).
    """

    phase: str
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Where the card was full and for what.

    ``requested_bytes`` is what the program wanted, ``attempted_bytes`` what the allocator then asks the card
    for (PyTorch's "Tried to allocate"); ``allocated_bytes`` and ``reserved_bytes`` are what it held after
    giving its cache back.
    """

    event: int
    phase: str
    op: str
    module: str
    requested_bytes: int
    attempted_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What the allocator did.  A replay that ran out of memory ends before the event that failed.

    ``allocated_timeline``, ``reserved_timeline`` hold the bytes after each event, ``held_bytes`` the size of
    the block that each ``alloc`` got (0 for other events).
    """

    settings: AllocatorSettings
    limit_bytes: int | None
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    phases: tuple[PhasePeaks, ...]
    n_retries: int
    n_device_frees: int
    out_of_memory: OutOfMemory | None
    allocated_timeline: array[int]
    reserved_timeline: array[int]
    held_bytes: array[int]

    @property
    def outcome(self) -> Outcome:
        """``fits_after_retry`` means that the cache was given back at least once, which costs time,
        and all went on.
        """
        if self.out_of_memory is not None:
            return "out_of_memory"
        return "fits_after_retry" if self.n_retries else "fits"

    @property
    def peak_allocated_event(self) -> int | None:
        """Index of the first event after which most was allocated; ``None`` without events."""
        return _first_peak(self.allocated_timeline)

    @property
    def peak_reserved_event(self) -> int | None:
        """Index of the first event after which most was reserved; ``None`` without events."""
        return _first_peak(self.reserved_timeline)


def replay(
    events: Iterable[AllocEvent],
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    limit_bytes: int | None = None,
) -> ReplayResult:
    """Replay ``events`` on a card that lets the allocator reserve ``limit_bytes`` (no limit when ``None``).

    Raises:
        UsageError: a stream that frees what is not allocated,
        allocates an id twice or holds a negative size; names the event.
    """
    return _Replay(settings, limit_bytes).run(events)


class _Replay:
    """The state of one replay."""

    def __init__(self, settings: AllocatorSettings, limit_bytes: int | None) -> None:
        self.allocator = CachingAllocator(settings, limit_bytes)
        # None stands for an allocation of no bytes, for which PyTorch keeps no block
        # (NativeCachingAllocator::allocate).
        self.live: dict[int, Block | None] = {}
        self.waiting: dict[int, int | None] = {}
        self.phase: str | None = None
        self.peaks: dict[str, tuple[int, int, int]] = {}
        self.out_of_memory: OutOfMemory | None = None
        self.held_bytes = array("q")

    def run(self, events: Iterable[AllocEvent]) -> ReplayResult:
        allocator, device = self.allocator, self.allocator.device
        allocated, reserved = array("q"), array("q")
        for index, event in enumerate(events):
            if event.phase != self.phase:
                self._enter(event.phase)
            if event.action == "alloc":
                if not self._alloc(index, event):
                    break
            elif event.action == "empty_cache":
                allocator.empty_cache()
                self.held_bytes.append(0)
            else:
                self._free(index, event)
            allocated.append(allocator.allocated_bytes)
            reserved.append(device.reserved_bytes)
        self._leave()
        peaks = tuple(PhasePeaks(phase, *bytes_) for phase, bytes_ in self.peaks.items())
        return ReplayResult(
            settings=allocator.settings,
            limit_bytes=device.limit_bytes,
            peak_allocated_bytes=max((peak.allocated_bytes for peak in peaks), default=0),
            peak_active_bytes=max((peak.active_bytes for peak in peaks), default=0),
            peak_reserved_bytes=max((peak.reserved_bytes for peak in peaks), default=0),
            phases=peaks,
            n_retries=allocator.n_retries,
            n_device_frees=device.n_frees,
            out_of_memory=self.out_of_memory,
            allocated_timeline=allocated,
            reserved_timeline=reserved,
            held_bytes=self.held_bytes,
        )

    def _enter(self, phase: str) -> None:
        self._leave()
        self.phase = phase
        self.allocator.reset_peaks()

    def _leave(self) -> None:
        if self.phase is None:
            return
        allocator = self.allocator
        peaks = allocator.peak_allocated_bytes, allocator.peak_active_bytes, allocator.peak_reserved_bytes
        before = self.peaks.get(self.phase, (0, 0, 0))
        self.peaks[self.phase] = max(before[0], peaks[0]), max(before[1], peaks[1]), max(before[2], peaks[2])

    def _alloc(self, index: int, event: AllocEvent) -> bool:
        """Whether the event could be served."""
        block_id, n_bytes = event.block, event.n_bytes
        if block_id in self.live or block_id in self.waiting:
            raise UsageError(f"event {index}: block {block_id} is allocated twice; free it first")
        if n_bytes <= 0:
            if n_bytes < 0:
                raise UsageError(f"event {index}: block {block_id} has a negative size of {n_bytes} bytes")
            self.live[block_id] = None
            self.held_bytes.append(0)
            return True
        block = self.allocator.malloc(n_bytes, event.stream)
        if block is None:
            self.out_of_memory = self._failure(index, event)
            return False
        self.live[block_id] = block
        self.held_bytes.append(block.size)
        return True

    def _free(self, index: int, event: AllocEvent) -> None:
        block_id, allocator = event.block, self.allocator
        self.held_bytes.append(0)
        if block_id in self.live:
            block = self.live.pop(block_id)
            if event.action == "free_requested":
                self.waiting[block_id] = None if block is None else allocator.request_free(block)
            elif block is not None:
                allocator.free(block)
        elif block_id in self.waiting and event.action == "free":
            ticket = self.waiting.pop(block_id)
            if ticket is not None:
                allocator.complete_free(ticket)
        else:
            raise UsageError(
                f"event {index}: block {block_id} is freed but not allocated; record the "
                "stream from its start"
            )

    def _failure(self, index: int, event: AllocEvent) -> OutOfMemory:
        allocator, limit = self.allocator, self.allocator.device.limit_bytes
        return OutOfMemory(
            event=index,
            phase=event.phase,
            op=event.op,
            module=event.module,
            requested_bytes=event.n_bytes,
            attempted_bytes=segment_bytes(allocator.rounded(event.n_bytes), allocator.settings),
            allocated_bytes=allocator.allocated_bytes,
            reserved_bytes=allocator.reserved_bytes,
            limit_bytes=limit if limit is not None else 0,
        )


def _first_peak(timeline: array[int]) -> int | None:
    return timeline.index(max(timeline)) if timeline else None
