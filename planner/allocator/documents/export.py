"""Events in the format of PyTorch's memory snapshots, which its memory visualiser opens
(pytorch.org/memory_viz).

The format is a pickle of plain lists, dictionaries, texts and numbers (``torch.cuda.memory._snapshot``,
``_dump_snapshot``, torch 2.13): it is written here and never read.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from planner.allocator.blocks import Block, StreamPool
from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.device import Device
from planner.allocator.events import AllocEvent
from planner.allocator.settings import AllocatorSettings, parse_settings
from planner.files.writing import whole_file

# One protocol for every Python, the one that torch writes.
_PROTOCOL = 4
_NO_POOL = (0, 0)


def write_snapshot(path: str | Path, events: Sequence[AllocEvent], settings_text: str = "") -> None:
    """Write the snapshot of ``events``, replayed on a card with room to spare.  ``settings_text``:
    see :func:`snapshot_of`.

    Raises:
        InputFileError: the file cannot be written.
    """
    snapshot = snapshot_of(events, settings_text)
    with whole_file(path) as stream:
        pickle.dump(snapshot, stream, protocol=_PROTOCOL)


def snapshot_of(events: Iterable[AllocEvent], settings_text: str = "") -> dict[str, Any]:
    """What ``torch.cuda.memory._snapshot()`` gives: ``segments`` at the end, ``device_traces``,
    and the settings.

    ``settings_text`` is what ``PYTORCH_CUDA_ALLOC_CONF`` would say; parts of expandable segments are mapped
    (``segment_map``) instead of allocated.  Phases are ``external_annotations``, times are numbers of
    entries, frames are the operator and its module.
    """
    settings = parse_settings(settings_text)
    snapshot = _Snapshot(settings).run(events)
    return {
        **snapshot,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": settings_text, **_settings(settings)},
    }


# A reader takes no more than 64 bits of an address, the model has more of them.
_OF_A_CARD = (1 << 62) - 1
# Action, address, bytes, stream.
_Log = list[tuple[str, int, int, int]]


class _LoggingDevice(Device):
    """Notes every range of an expandable segment that gets memory or loses it."""

    __slots__ = ("_log",)

    def __init__(self, log: _Log) -> None:
        super().__init__(None)
        self._log = log

    def map(self, address: int, n_bytes: int, stream: int) -> bool:
        self._log.append(("segment_map", address, n_bytes, stream))
        return super().map(address, n_bytes, stream)

    def unmap(self, address: int, n_bytes: int, stream: int) -> None:
        super().unmap(address, n_bytes, stream)
        self._log.append(("segment_unmap", address, n_bytes, stream))


class LoggingAllocator(CachingAllocator):
    """Notes in ``log`` every segment, or part of an expandable one,
    that is taken from the card or given back.
    """

    def __init__(self, settings: AllocatorSettings) -> None:
        super().__init__(settings)
        self.log: _Log = []
        self.device = _LoggingDevice(self.log)

    def _reserve(self, pool: StreamPool, size: int) -> Block | None:
        block = super()._reserve(pool, size)
        if block is not None and not block.expandable_bytes:
            self.log.append(("segment_alloc", block.address, block.size, pool.stream))
        return block

    def _release(self, block: Block) -> None:
        super()._release(block)
        self.log.append(("segment_free", block.address, block.size, block.pool.stream))

    def free_blocks(self) -> list[Block]:
        """Every cached block."""
        return [
            block for pool in (*self._small.values(), *self._large.values()) for block in pool.free_blocks()
        ]


class _Snapshot:
    """The state of one export."""

    def __init__(self, settings: AllocatorSettings) -> None:
        self.allocator = LoggingAllocator(settings)
        self.entries: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.live: dict[int, tuple[Block, AllocEvent]] = {}
        self.waiting: dict[int, tuple[int, Block, AllocEvent]] = {}
        self.phase = ""
        self.frames: dict[tuple[str, str, str], list[dict[str, Any]]] = {}

    def run(self, events: Iterable[AllocEvent]) -> dict[str, Any]:
        for event in events:
            self._enter(event.phase)
            if event.action == "empty_cache":
                self.allocator.empty_cache()
                self._note_segments(event)
            elif event.n_bytes > 0:
                self._allocate(event) if event.action == "alloc" else self._free(event)
        self._enter("")
        return {
            "segments": self._segments(),
            "device_traces": [self.entries],
            "external_annotations": self.annotations,
        }

    def _enter(self, phase: str) -> None:
        if phase == self.phase:
            return
        for name, stage in ((self.phase, "END"), (phase, "START")):
            if name:
                self.annotations.append(
                    {"name": name, "stage": stage, "device": 0, "time_us": len(self.entries)}
                )
        self.phase = phase

    def _allocate(self, event: AllocEvent) -> None:
        block = self.allocator.malloc(event.n_bytes, event.stream)
        self._note_segments(event)
        if block is not None:  # a card without a limit is never full
            self.live[event.block] = block, event
            self._note("alloc", block.address, event.n_bytes, event)

    def _free(self, event: AllocEvent) -> None:
        ticket: int | None = None
        if event.block in self.waiting:
            ticket, block, made = self.waiting.pop(event.block)
        else:
            block, made = self.live.pop(event.block)
            self._note("free_requested", block.address, made.n_bytes, made)
        if event.action == "free_requested":
            self.waiting[event.block] = self.allocator.request_free(block), block, made
            return
        # Noted first: freeing joins the block with its neighbours.
        self._note("free_completed", block.address, made.n_bytes, made)
        if ticket is None:
            self.allocator.free(block)
        else:
            self.allocator.complete_free(ticket)

    def _note_segments(self, event: AllocEvent) -> None:
        for action, address, size, stream in self.allocator.log:
            self._note(action, address, size, event, stream)
        self.allocator.log.clear()

    def _note(
        self, action: str, address: int, n_bytes: int, made: AllocEvent, stream: int | None = None
    ) -> None:
        self.entries.append(
            {
                "action": action,
                "addr": address & _OF_A_CARD,
                "size": n_bytes,
                "stream": made.stream if stream is None else stream,
                "time_us": len(self.entries),
                "frames": self._frames(made),
                "pool_id": _NO_POOL,
            }
        )

    def _frames(self, event: AllocEvent) -> list[dict[str, Any]]:
        """Innermost first: the operator in its module, then the term.  The same list for the same place,
        as in a real one.
        """
        key = event.op, event.module, event.term
        if key not in self.frames:
            self.frames[key] = [
                {"name": event.op, "filename": event.module, "line": 0},
                {"name": event.term, "filename": "term", "line": 0},
            ]
        return self.frames[key]

    def _segments(self) -> list[dict[str, Any]]:
        """Every plain segment,
        and every run of an expandable one that has memory behind it (``snapshot``).
        """
        held = {block.address: ("active_allocated", made) for block, made in self.live.values()}
        held |= {block.address: ("active_awaiting_free", made) for _, block, made in self.waiting.values()}
        blocks = [block for block, _ in self.live.values()] + [block for _, block, _ in self.waiting.values()]
        heads = [
            each
            for each in blocks + self.allocator.free_blocks()
            if each.prev is None or not each.prev.mapped
        ]
        return [self._segment(head, held) for head in sorted(heads, key=lambda each: each.address)]

    def _segment(self, head: Block, held: dict[int, tuple[str, AllocEvent]]) -> dict[str, Any]:
        blocks = []
        totals = {"active_allocated": 0, "active_awaiting_free": 0, "inactive": 0}
        requested = 0
        block: Block | None = head
        while block is not None and block.mapped:
            state, made = held.get(block.address, ("inactive", None))
            wanted = 0 if made is None else made.n_bytes
            frames = [] if made is None else self._frames(made)
            place = {"address": block.address & _OF_A_CARD, "size": block.size, "requested_size": wanted}
            blocks.append({**place, "state": state, "frames": frames})
            totals[state] += block.size
            requested += wanted
            block = block.next
        return {
            "device": 0,
            "address": head.address & _OF_A_CARD,
            "total_size": sum(totals.values()),
            "allocated_size": totals["active_allocated"],
            "active_size": totals["active_allocated"] + totals["active_awaiting_free"],
            "requested_size": requested,
            "stream": head.pool.stream,
            "segment_type": "small" if head.pool.is_small else "large",
            "segment_pool_id": _NO_POOL,
            "is_expandable": bool(head.expandable_bytes),
            "frames": [],
            "blocks": blocks,
        }


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    """The fields of a snapshot's ``allocator_settings`` that are modelled."""
    return {
        "max_split_size": -1 if settings.max_split_bytes is None else settings.max_split_bytes,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
    }
