"""Streams of events by hand."""

from __future__ import annotations

from typing import Any

from planner.allocator.events import (
    AllocEvent,
)
from planner.units import MIB


def stream_of(*steps: tuple[Any, ...], phase: str = "forward") -> list[AllocEvent]:
    """Events from ``("alloc", id, MiB)`` and ``("free", id)``."""
    return [
        AllocEvent(step[0], step[1], int(step[2] * MIB) if len(step) > 2 else 0, phase=phase)
        for step in steps
    ]
