"""What the program needs in as many updates of the optimizer as a trace has: one process alone is traced up
to the passes behind its first update, one of several that share a model to the second one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from planner.allocator.events import AllocEvent
from planner.arrays import maximum
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import run_of
from planner.program.job import job_of

UPDATE = "optimizer_step"


@dataclass(frozen=True, slots=True)
class Updates:
    """Most bytes allocated and reserved in the updates that a trace has."""

    allocated_bytes: Number
    reserved_bytes: Number


def updates_of(scenario: Scenario, events: Iterable[AllocEvent]) -> Updates | None:
    """The updates of the program of a job; ``None`` where the trace has none."""
    n_updates = sum(phase == UPDATE for phase, _ in groupby(event.phase for event in events))
    run = run_of(job_of(scenario, Coefficients()))
    phases = zip(run.stream.phases, run.done.phases, strict=True)
    done = [replay for (_, name), replay in phases if name == UPDATE][:n_updates]
    if not done:
        return None
    return Updates(
        maximum(*(each.allocated_bytes for each in done)), maximum(*(each.reserved_bytes for each in done))
    )
