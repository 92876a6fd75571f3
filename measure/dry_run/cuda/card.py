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
_KIND, _ID, _BYTES, _STREAM, _DEVICE = 0, 1, 2, 3, 8


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
    """The statistics of each card's allocator at any moment: they catch up with the log when one is asked.

    ``settings``: text as in ``PYTORCH_CUDA_ALLOC_CONF``; empty for what the program's variables say when it
    asks first.  There is no limit here: what a full card does is said after the run.
    """

    def __init__(self, native: Native, settings: str = "") -> None:
        self._native, self._settings = native, settings
        self._made: dict[int, CachingAllocator] = {}
        self._seen = 0
        self._blocks: dict[int, tuple[CachingAllocator, Block | None]] = {}
        self._tickets: dict[int, tuple[CachingAllocator, int | None]] = {}

    def now(self, card: int = 0) -> CachingAllocator:
        """The allocator of a card after all that has happened so far."""
        rows = self._native.rows(self._seen)
        self._seen += len(rows)
        for row in rows.tolist():
            self._follow(row)
        return self._of(card)

    def _of(self, card: int) -> CachingAllocator:
        if card not in self._made:
            try:
                settings = parse_settings(self._settings or said_to_allocator())
            except PlannerError:
                settings = DEFAULT_SETTINGS  # whoever started the program refuses this text
            self._made[card] = CachingAllocator(settings)
        return self._made[card]

    def _follow(self, row: list[int]) -> None:
        kind, number = row[_KIND], row[_ID]
        if kind == ALLOC:
            own = self._of(row[_DEVICE])
            self._blocks[number] = own, own.malloc(row[_BYTES], row[_STREAM]) if row[_BYTES] else None
        elif kind == EMPTY_CACHE:
            for own in self._made.values():
                own.empty_cache()
        elif number in self._tickets:
            own, ticket = self._tickets.pop(number)
            if ticket is not None:
                own.complete_free(ticket)
        else:
            self._free(number, waits=kind == FREE_REQUESTED)

    def _free(self, number: int, *, waits: bool) -> None:
        own, block = self._blocks.pop(number)
        if waits:
            self._tickets[number] = own, None if block is None else own.request_free(block)
        elif block is not None:
            own.free(block)
