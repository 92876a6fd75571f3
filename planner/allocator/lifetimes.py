"""Recorded allocations -> terms, by when each block was made and when it was let go.

A recorded history names no module and no operator, so it tells fewer terms apart than a trace.  Constants of
a quantised base count as weights, expanded weights as temporaries of the pass, and 16-bit copies of autocast
as saved activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.allocator.events import AllocEvent
from planner.domain.term import TermName

_SETUP = frozenset({"", "load", "adapters"})
_BACKWARD = frozenset({"backward", "backward_2"})
_LOSS = frozenset({"loss", "loss_2"})
_PASS = frozenset({"forward", "forward_2"}) | _LOSS | _BACKWARD


@dataclass(frozen=True, slots=True)
class _Place:
    """A phase, which visit of any phase it is, and in which micro-step."""

    phase: str
    visit: int
    micro_step: int


def with_terms(events: Sequence[AllocEvent]) -> list[AllocEvent]:
    """``events`` with the term of each block at its allocation; their phases must be known."""
    places = _places(events)
    freed_at: dict[int, _Place] = {}
    live: dict[int, int] = {}
    for index, event in enumerate(events):
        if event.action == "alloc":
            live[event.block] = index
        elif event.block in live:
            # What another stream still holds is let go already.
            freed_at[live.pop(event.block)] = places[index]
    last = places[-1] if places else None
    return [
        replace(event, term=_term(places[index], freed_at.get(index), last))
        if event.action == "alloc"
        else event
        for index, event in enumerate(events)
    ]


def _places(events: Sequence[AllocEvent]) -> list[_Place]:
    places: list[_Place] = []
    place = _Place("", 0, 0)
    for event in events:
        if event.phase != place.phase:
            begins = event.phase in ("forward", "forward_2")
            place = _Place(event.phase, place.visit + 1, place.micro_step + begins)
        places.append(place)
    return places


def _term(born: _Place, freed: _Place | None, last: _Place | None) -> TermName:
    """What a block was for.  ``freed`` is ``None`` for one that was still there when the recording ended at
    ``last``.
    """
    passing = freed is not None and freed.visit == born.visit
    if born.phase in _SETUP:
        return "other_temporaries" if passing else "adapters" if born.phase == "adapters" else "weights"
    if born.phase == "optimizer_step":
        return "optimizer_temporaries" if passing else "optimizer_states"
    if born.phase in _BACKWARD:
        return "block_recompute" if passing else "gradients"
    if born.phase in _LOSS:
        return "logits_and_loss" if passing or _waits_for_backward(born, freed, last) else "other_temporaries"
    if passing:
        return "block_recompute"
    return "saved_activations" if _waits_for_backward(born, freed, last) else "other_temporaries"


def _waits_for_backward(born: _Place, freed: _Place | None, last: _Place | None) -> bool:
    """Whether a block of a pass is let go later in its own micro-step,
    or would have been had the recording not ended there.

    What stays beyond it is a workspace or a cache.
    """
    end = freed or last
    return end is not None and end.micro_step == born.micro_step and end.phase in _PASS
