"""Leave one group out: fits that never see the group they are judged on;
the pull to the priors is chosen inside the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.calibration.fit.machine_effects import kept_effects
from planner.calibration.fit.problem import Problem
from planner.calibration.fit.solver import (
    DEFAULT_PULL,
    Pull,
    Solution,
    errors_of_fits,
    mean_error,
    pulls_to_try,
    solve,
    usual_pull,
)
from planner.calibration.fit.targets import Floats
from planner.domain.uncertainty.calibration import Offset

# Choosing a pull needs at least this many groups to choose on.
_MIN_GROUPS_TO_CHOOSE = 2
# Up to this many groups each is left out in turn; of more, a quarter at a time.
_EACH_UP_TO = 6
_INNER_FOLDS = 3


@dataclass(frozen=True, slots=True)
class CrossFit:
    """One fit on everything (row 0 of ``solution``) and one without each group (the rows after it,
    as ``groups`` are ordered).

    ``machine_offsets``: effects of single machines that the fit on everything keeps, beside what all share.
    """

    problem: Problem
    groups: tuple[str, ...]
    pulls: tuple[Pull, ...]
    solution: Solution
    machine_offsets: tuple[Offset, ...] = ()

    @property
    def strengths(self) -> tuple[float, ...]:
        """How many times the priors of what is shared count in each fit."""
        return tuple(pull.shared for pull in self.pulls)

    @property
    def free_numbers(self) -> int:
        """How many numbers predictions use: those that all share, and effects of machines that are kept."""
        return int(self.problem.is_shared.sum()) + len(self.machine_offsets)

    def shared_offsets(self, held_out: str | None) -> tuple[Offset, ...]:
        """Offsets of what all share under the fit without a group, or under the one that saw all."""
        row = 0 if held_out not in self.groups else 1 + self.groups.index(held_out)
        values = self.problem.offsets(self.solution.points[row])
        spreads = self.solution.spread[row] * self.problem.spread
        triples = zip(self.problem.knobs, values, spreads, strict=True)
        return tuple(
            Offset(knob, float(value), float(spread))
            for knob, value, spread in triples
            if knob.level != "host"
        )

    @property
    def held_out_errors(self) -> Floats:
        """Log errors of each reading under the fit that did not see its group."""
        rows = {group: row for row, group in enumerate(self.groups, start=1)}
        return np.array(
            [self.solution.errors[rows[each.group], i] for i, each in enumerate(self.problem.targets)]
        )


def cross_fit(problem: Problem, room_for_machines: int = 0) -> CrossFit:
    """Fit on all groups, and on all but one for each group in turn; ``room_for_machines``:
    machine effects to keep at most.
    """
    groups = problem.groups
    weights = problem.weights()
    names = [target.group for target in problem.targets]
    insides = [groups, *(tuple(other for other in groups if other != group) for group in groups)]
    pulls = _choose_pulls(problem, weights, names, insides)
    seen = np.stack([weights * np.isin(names, inside) for inside in insides])
    found = CrossFit(problem, groups, tuple(pulls), solve(problem, seen, pulls))
    kept = kept_effects(problem, found.shared_offsets(None), room_for_machines)
    return replace(found, machine_offsets=kept)


def _choose_pulls(
    problem: Problem, weights: Floats, names: Sequence[str], masks: Sequence[Sequence[str]]
) -> list[Pull]:
    """For each set of groups the pull that predicts those inside it best when a part of them is left out in
    turn.

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
    choices = pulls_to_try(problem)
    jobs = [(groups, pull) for groups in trained for pull in choices]
    errors: dict[tuple[tuple[str, ...], Pull], Floats] = {}
    if jobs:
        seen = np.stack([weights * np.isin(names, groups) for groups, _ in jobs])
        found = errors_of_fits(problem, seen, [pull for _, pull in jobs])
        errors = dict(zip(jobs, found, strict=True))

    def by_group(pull: Pull, inside: Sequence[str], folds: Sequence[Sequence[str]]) -> Floats:
        return np.array(
            [
                mean_error(
                    problem, errors[tuple(group for group in inside if group not in fold), pull], group
                )
                for fold in folds
                for group in fold
            ]
        )

    usual = usual_pull(problem)
    return [
        clearly_best({pull: by_group(pull, inside, folds) for pull in choices}, usual)
        if folds
        else DEFAULT_PULL
        for inside, folds in zip(masks, plans, strict=True)
    ]


def clearly_best(scores: Mapping[Pull, Floats], usual: Pull | None) -> Pull:
    """The pull with the least mean error over groups;
    ``usual`` where that is within one standard error of the difference.

    Groups differ in error by far more than pulls do, so a least mean alone is mostly chance.
    """
    best = min(scores, key=lambda pull: float(np.mean(scores[pull])))
    if usual is None or best == usual:
        return best
    gain = scores[usual] - scores[best]
    return best if np.mean(gain) > np.std(gain, ddof=1) / math.sqrt(len(gain)) else usual


def _inner_folds(groups: Sequence[str]) -> list[tuple[str, ...]]:
    """Parts of ``groups`` to leave out in turn: each group where they are few,
    else ``_INNER_FOLDS`` parts; none of one group.
    """
    if len(groups) < _MIN_GROUPS_TO_CHOOSE:
        return []
    count = len(groups) if len(groups) <= _EACH_UP_TO else _INNER_FOLDS
    return [tuple(groups[start::count]) for start in range(count)]
