"""How many updates of the program are put beside those of a trace."""

from __future__ import annotations

from planner.allocator.events import AllocEvent
from planner.report.trace.updates import Updates, updates_of
from tests.jobs import resolved


def found(*phases: str) -> Updates | None:
    """Those of a small model on two cards, whose second update has more reserved behind it than the first."""
    flags = {"model": "gpt2", "method": "full", "gpu": "a100-80-sxm:2", "sharding": "zero2", "seq": 512}
    events = [AllocEvent("alloc", number, 512, phase=phase) for number, phase in enumerate(phases)]
    return updates_of(resolved(flags), events)


def test_as_many_updates_count_as_the_trace_has() -> None:
    """One, or both of them."""
    once = found("forward", "optimizer_step", "optimizer_step", "forward_2")
    twice = found("optimizer_step", "forward_2", "optimizer_step")
    assert once is not None
    assert twice is not None
    assert once.reserved_bytes < twice.reserved_bytes
    assert once.allocated_bytes <= twice.allocated_bytes
    assert found("forward") is None
