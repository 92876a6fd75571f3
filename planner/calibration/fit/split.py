"""Leave one group out: fits that never see the group they are judged on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.calibration.fit.problem import Problem
from planner.calibration.fit.solver import Solution, solve
from planner.calibration.fit.targets import Floats
from planner.domain.uncertainty.calibration import Offset


@dataclass(frozen=True, slots=True)
class CrossFit:
    """One fit on everything (row 0 of ``solution``) and one without each group (the rows after it,
    as ``groups`` are ordered).
    """

    problem: Problem
    groups: tuple[str, ...]
    solution: Solution

    def offsets(self, held_out: str | None) -> tuple[Offset, ...]:
        """Offsets of the fit without a group, or of the one that saw all."""
        row = 0 if held_out not in self.groups else 1 + self.groups.index(held_out)
        return self.problem.fitted(self.solution.points[row], self.solution.spread[row])

    @property
    def held_out_errors(self) -> Floats:
        """Log errors of each reading under the fit that did not see its group."""
        rows = {group: row for row, group in enumerate(self.groups, start=1)}
        return np.array(
            [self.solution.errors[rows[each.group], i] for i, each in enumerate(self.problem.targets)]
        )


def cross_fit(problem: Problem) -> CrossFit:
    """Fit on all groups, and on all but one for each group in turn."""
    weights, names = problem.weights(), np.array([target.group for target in problem.targets])
    seen = np.stack([weights, *(weights * (names != group) for group in problem.groups)])
    return CrossFit(problem, problem.groups, solve(problem, seen))
