"""Leave one group out: fits that never see the group they are judged on, with the prior's strength chosen inside the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration.fit import DEFAULT_STRENGTH, STRENGTHS, Solution, mean_error, solve
from planner.calibration.problem import Problem
from planner.calibration.targets import Floats

# Choosing a strength needs at least this many groups to choose on.
_MIN_GROUPS_TO_CHOOSE = 2
# Up to this many groups each is left out in turn; of more, a quarter at a time.
_EACH_UP_TO = 6
_INNER_FOLDS = 4


@dataclass(frozen=True, slots=True)
class CrossFit:
    """One fit on everything (row 0 of ``solution``) and one without each group (the rows after it, as ``groups`` are ordered)."""

    problem: Problem
    groups: tuple[str, ...]
    strengths: tuple[float, ...]
    solution: Solution

    @property
    def fitted_errors(self) -> Floats:
        """Log errors of all readings under the fit that saw them all."""
        errors: Floats = self.solution.errors[0]
        return errors

    @property
    def held_out_errors(self) -> Floats:
        """Log errors of each reading under the fit that did not see its group."""
        rows = {group: row for row, group in enumerate(self.groups, start=1)}
        return np.array([self.solution.errors[rows[each.group], i] for i, each in enumerate(self.problem.targets)])


def cross_fit(problem: Problem) -> CrossFit:
    """Fit on all groups, and on all but one for each group in turn."""
    groups = problem.groups
    weights = problem.weights()
    names = [target.group for target in problem.targets]
    insides = [groups, *(tuple(other for other in groups if other != group) for group in groups)]
    strengths = _choose_strengths(problem, weights, names, insides)
    seen = np.stack([weights * np.isin(names, inside) for inside in insides])
    return CrossFit(problem, groups, tuple(strengths), solve(problem, seen, strengths))


def _choose_strengths(problem: Problem, weights: Floats, names: Sequence[str], masks: Sequence[Sequence[str]]) -> list[float]:
    """For each set of groups the strength that predicts those inside it best when a part of them is left out in turn.

    Every inner fit is a fit like any other; all of them run together, each distinct one once.
    """
    plans = [_inner_folds(inside) for inside in masks]
    trained = sorted(
        {
            tuple(group for group in inside if group not in fold)
            for inside, folds in zip(masks, plans, strict=True)
            for fold in folds
        }
    )
    jobs = [(groups, strength) for groups in trained for strength in STRENGTHS]
    errors: dict[tuple[tuple[str, ...], float], Floats] = {}
    if jobs:
        seen = np.stack([weights * np.isin(names, groups) for groups, _ in jobs])
        found = solve(problem, seen, [strength for _, strength in jobs]).errors
        errors = dict(zip(jobs, found, strict=True))

    def score(strength: float, inside: Sequence[str], folds: Sequence[Sequence[str]]) -> float:
        each = [
            mean_error(problem, errors[tuple(group for group in inside if group not in fold), strength], group)
            for fold in folds
            for group in fold
        ]
        return float(np.mean(each))

    chosen = []
    for inside, folds in zip(masks, plans, strict=True):
        scores = [score(strength, inside, folds) for strength in STRENGTHS] if folds else []
        chosen.append(STRENGTHS[int(np.argmin(scores))] if scores else DEFAULT_STRENGTH)
    return chosen


def _inner_folds(groups: Sequence[str]) -> list[tuple[str, ...]]:
    """Parts of ``groups`` to leave out in turn: each group where they are few, else ``_INNER_FOLDS`` parts; none of one group."""
    if len(groups) < _MIN_GROUPS_TO_CHOOSE:
        return []
    count = len(groups) if len(groups) <= _EACH_UP_TO else _INNER_FOLDS
    return [tuple(groups[start::count]) for start in range(count)]
