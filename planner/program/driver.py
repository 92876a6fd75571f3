"""Bytes on the card that PyTorch's allocator does not know of."""

from __future__ import annotations

from collections.abc import Iterable

from planner.domain.recipes.recipe import Number
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.parameters import Weight
from planner.program.update.states import states_of


def paged_state_bytes(job: Job, trained: Iterable[Weight]) -> Number:
    """Bytes of paged optimizer states: managed memory, which is on the card while there is room.

    Source: bitsandbytes 0.50 optim/optimizer.py get_state_buffer, functional.py get_paged.
    """
    values = unit_values(job)
    paged = (state for weight in trained for state in states_of(job, weight) if state.paged)
    return sum(state.unit_bytes * values[state.unit] for state in paged)
