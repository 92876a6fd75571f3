"""The pretended card: its size and kind, and the statistics of its allocator while the program runs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from measure.dry_run.cuda.native import ALLOC, EMPTY_CACHE, FREE_REQUESTED, Native
from planner.allocator.blocks import Block
from planner.allocator.caching_allocator import CachingAllocator
from planner.allocator.settings import DEFAULT_SETTINGS, parse_settings
from planner.errors import PlannerError

# The first of these that says something wins (torch 2.13, run with both).
_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_KIND, _ID, _BYTES, _STREAM = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What the program can ask of the card."""

    name: str
    compute_capability: tuple[int, int]
    total_bytes: int
    multiprocessors: int
    n_cards: int = 1


def said_to_allocator() -> str:
    """Settings that the variables of this process give torch's allocator at this moment."""
    return next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")


class LiveAllocator:
    """The allocator's statistics at any moment: it catches up with the log whenever it is asked.

    ``settings``: text as in ``PYTORCH_CUDA_ALLOC_CONF``; empty for what the program's variables say when it
    asks first.  There is no limit here: what a full card does is said after the run.
    """

    def __init__(self, native: Native, settings: str = "") -> None:
        self._native, self._settings = native, settings
        self._made: CachingAllocator | None = None
        self._seen = 0
        self._blocks: dict[int, Block | None] = {}
        self._tickets: dict[int, int | None] = {}

    def now(self) -> CachingAllocator:
        """The allocator after all that has happened so far."""
        rows = self._native.rows(self._seen)
        self._seen += len(rows)
        for row in rows.tolist():
            self._follow(row)
        return self._allocator

    @property
    def _allocator(self) -> CachingAllocator:
        if self._made is None:
            try:
                settings = parse_settings(self._settings or said_to_allocator())
            except PlannerError:
                settings = DEFAULT_SETTINGS  # whoever started the program refuses this text
            self._made = CachingAllocator(settings)
        return self._made

    def _follow(self, row: list[int]) -> None:
        kind, number = row[_KIND], row[_ID]
        if kind == ALLOC:
            self._blocks[number] = self._allocator.malloc(row[_BYTES], row[_STREAM]) if row[_BYTES] else None
        elif kind == EMPTY_CACHE:
            self._allocator.empty_cache()
        elif number in self._tickets:
            ticket = self._tickets.pop(number)
            if ticket is not None:
                self._allocator.complete_free(ticket)
        else:
            self._free(number, waits=kind == FREE_REQUESTED)

    def _free(self, number: int, *, waits: bool) -> None:
        block = self._blocks.pop(number)
        if waits:
            self._tickets[number] = None if block is None else self._allocator.request_free(block)
        elif block is not None:
            self._allocator.free(block)
