"""What the allocations of a dry run say about one card."""

from __future__ import annotations

from collections.abc import Sequence

from planner.allocator.events import AllocEvent
from planner.allocator.replay import replay
from planner.errors import ExitCode
from planner.units import GIB

# The most that a CUDA context takes of what the card makes visible (docs/dry_run.md); the dry run has none.
CONTEXT_BYTES = int(0.8 * GIB)


def verdict_under(events: Sequence[AllocEvent], limit_bytes: int) -> ExitCode:
    """Whether the replay ends on such a card: uncertain where a CUDA context beside it decides."""
    if replay(events, limit_bytes=limit_bytes).out_of_memory is not None:
        return ExitCode.GPU_MEMORY_SHORT
    beside_context = replay(events, limit_bytes=limit_bytes - CONTEXT_BYTES)
    return ExitCode.FITS if beside_context.out_of_memory is None else ExitCode.UNCERTAIN
