"""Events in the format of PyTorch's memory snapshots, which its memory visualiser opens (pytorch.org/memory_viz).

The format is a pickle of plain lists, dictionaries, texts and numbers (``torch.cuda.memory._snapshot``, ``_dump_snapshot``,
torch 2.13): it is written here and never read.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from measure.trace.allocator import CachingAllocator
from measure.trace.blocks import Block, StreamPool
from measure.trace.events import AllocEvent
from measure.trace.files import whole_file
from measure.trace.settings import AllocatorSettings
from measure.trace.settings_text import parse_settings
from planner.errors import NotModelledError

# One protocol for every Python, the one that torch writes.
_PROTOCOL = 4
_NO_POOL = (0, 0)


def write_snapshot(path: str | Path, events: Sequence[AllocEvent], settings_text: str = "") -> None:
    """Write the snapshot of ``events``, replayed on a card with room to spare.  ``settings_text``: see :func:`snapshot_of`.

    Raises:
        InputFileError: the file cannot be written.
        NotModelledError: expandable segments, whose mapped pages are not written.
    """
    snapshot = snapshot_of(events, settings_text)
    with whole_file(path) as stream:
        pickle.dump(snapshot, stream, protocol=_PROTOCOL)


def snapshot_of(events: Iterable[AllocEvent], settings_text: str = "") -> dict[str, Any]:
    """What ``torch.cuda.memory._snapshot()`` gives: ``segments`` at the end, ``device_traces``, and the settings.

    ``settings_text`` is what ``PYTORCH_CUDA_ALLOC_CONF`` would say.  Phases are ``external_annotations``, times are numbers of
    entries, frames are the operator and its module.

    Raises:
        NotModelledError: expandable segments, whose mapped pages are not written.
    """
    settings = parse_settings(settings_text)
    if settings.expandable_segments:
        raise NotModelledError("expandable segments cannot be exported; leave expandable_segments out of --allocator")
    snapshot = _Snapshot(settings).run(events)
    return {**snapshot, "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": settings_text, **_settings(settings)}}


class _LoggingAllocator(CachingAllocator):
    """Notes every segment that is taken from the card or given back."""

    def __init__(self, settings: AllocatorSettings) -> None:
        super().__init__(settings)
        self.log: list[tuple[str, int, int, int]] = []
        self.sizes: dict[int, int] = {}

    def _reserve(self, pool: StreamPool, size: int) -> Block | None:
        block = super()._reserve(pool, size)
        if block is not None:
            self.log.append(("segment_alloc", block.address, block.size, pool.stream))
            self.sizes[block.address] = block.size
        return block

    def _release(self, block: Block) -> None:
        super()._release(block)
        self.log.append(("segment_free", block.address, block.size, block.pool.stream))
        del self.sizes[block.address]

    def free_blocks(self) -> list[Block]:
        """Every cached block."""
        return [block for pool in (*self._small.values(), *self._large.values()) for block in pool.free_blocks()]


class _Snapshot:
    """The state of one export."""

    def __init__(self, settings: AllocatorSettings) -> None:
        self.allocator = _LoggingAllocator(settings)
        self.entries: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.live: dict[int, tuple[Block, AllocEvent]] = {}
        self.waiting: dict[int, tuple[int, Block, AllocEvent]] = {}
        self.phase = ""
        self.frames: dict[tuple[str, str, str], list[dict[str, Any]]] = {}

    def run(self, events: Iterable[AllocEvent]) -> dict[str, Any]:
        for event in events:
            self._enter(event.phase)
            if event.n_bytes > 0:
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
                self.annotations.append({"name": name, "stage": stage, "device": 0, "time_us": len(self.entries)})
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

    def _note(self, action: str, address: int, n_bytes: int, made: AllocEvent, stream: int | None = None) -> None:
        self.entries.append(
            {
                "action": action,
                "addr": address,
                "size": n_bytes,
                "stream": made.stream if stream is None else stream,
                "time_us": len(self.entries),
                "frames": self._frames(made),
                "pool_id": _NO_POOL,
            }
        )

    def _frames(self, event: AllocEvent) -> list[dict[str, Any]]:
        """Innermost first: the operator in its module, then the term.  The same list for the same place, as in a real one."""
        key = event.op, event.module, event.term
        if key not in self.frames:
            self.frames[key] = [
                {"name": event.op, "filename": event.module, "line": 0},
                {"name": event.term, "filename": "term", "line": 0},
            ]
        return self.frames[key]

    def _segments(self) -> list[dict[str, Any]]:
        held = {block.address: ("active_allocated", block, made) for block, made in self.live.values()}
        held |= {block.address: ("active_awaiting_free", block, made) for _, block, made in self.waiting.values()}
        free = {block.address: block for block in self.allocator.free_blocks()}
        return [self._segment(start, size, held, free) for start, size in sorted(self.allocator.sizes.items())]

    def _segment(self, start: int, size: int, held: dict[int, Any], free: dict[int, Block]) -> dict[str, Any]:
        blocks = []
        address = start
        totals = {"active_allocated": 0, "active_awaiting_free": 0, "inactive": 0}
        requested = 0
        pool: StreamPool | None = None
        while address < start + size:
            state, block, made = held.get(address) or ("inactive", free[address], None)
            wanted = 0 if made is None else made.n_bytes
            frames = [] if made is None else self._frames(made)
            blocks.append({"address": address, "size": block.size, "requested_size": wanted, "state": state, "frames": frames})
            totals[state] += block.size
            requested += wanted
            pool, address = block.pool, address + block.size
        return {
            "device": 0,
            "address": start,
            "total_size": size,
            "allocated_size": totals["active_allocated"],
            "active_size": totals["active_allocated"] + totals["active_awaiting_free"],
            "requested_size": requested,
            "stream": pool.stream if pool is not None else 0,
            "segment_type": "small" if pool is not None and pool.is_small else "large",
            "segment_pool_id": _NO_POOL,
            "is_expandable": False,
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
