"""How much may be tried beside one job, so that its answer takes some seconds at most."""

from __future__ import annotations

from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.fullest_stage import fullest_job
from planner.memory.replayed import replayed

# Of programs that are built for one kind of advice: a hundred thousand take about half a second.
_MAX_ALLOCATIONS = 130_000
_MOST_ALLOCATIONS = 100_000
# A quick estimate of a deep model reads two shallow ones, which have less than half of its layers together.
_QUICK = 2


def n_allocations(scenario: Scenario) -> int:
    """How many allocations are written down one by one for a job, which is replayed if it was not before."""
    return replayed(fullest_job(scenario, Coefficients())).n_single


def is_affordable(scenario: Scenario) -> bool:
    """Whether a person waits for anything beside the job itself: programs of its size are fast enough."""
    return n_allocations(scenario) <= _MOST_ALLOCATIONS


def n_affordable(scenario: Scenario, *, quick: bool = False) -> int:
    """How many estimates of programs of the size of the job's may be made for one kind of advice."""
    return (_QUICK if quick else 1) * _MAX_ALLOCATIONS // n_allocations(scenario)
