"""Streams of a few blocks, made by hand."""

from __future__ import annotations

from planner.allocator.events import AllocEvent
from planner.units import MIB


def alloc(block: int, n_bytes: int, phase: str, term: str, stream: int = 0) -> AllocEvent:
    """A block of a term, made in a phase."""
    return AllocEvent("alloc", block, n_bytes, stream, phase, term, op=f"op{block}", module=f"layers.{block}")


def free(block: int, n_bytes: int, phase: str, action: str = "free", stream: int = 0) -> AllocEvent:
    """The block goes, or waits for another stream."""
    return AllocEvent(action, block, n_bytes, stream, phase)  # type: ignore[arg-type]


EVENTS = [
    alloc(1, 12 * MIB, "load", "weights"),
    alloc(2, 4 * MIB, "forward", "saved_activations"),
    alloc(3, 30 * MIB, "forward", "block_recompute"),
    free(3, 30 * MIB, "forward"),
    free(2, 4 * MIB, "backward"),
    alloc(4, 6 * MIB, "backward", "gradients"),
    alloc(5, 700, "backward", "weights"),
]
