"""How much may be tried beside one job, so that its answer takes some seconds at most."""

from __future__ import annotations

from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.fullest_stage import fullest_job
from planner.memory.replayed import replayed
from planner.program.parameters import n_tensors

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


def is_affordable_beside(scenario: Scenario, after: Scenario) -> bool:
    """Whether the changed job is, too: code that has a tensor for each expert may take a hundred times as
    long as code that has one for all of them.
    """
    growth = _n_matrices(after) / _n_matrices(scenario)
    return growth * n_allocations(scenario) <= _MOST_ALLOCATIONS


def _n_matrices(scenario: Scenario) -> int:
    """How many tensors the matrices of the language model are."""
    return sum(
        group.count * n_tensors(scenario.stack, linear)
        for group in scenario.model.groups
        for linear in group.block.linears
    )
