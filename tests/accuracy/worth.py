"""What each coefficient is worth that the shipped fit moves: the error on left-out sources without it,
less that with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np

from planner.calibration.fit.calibrate import EARNED
from planner.calibration.fit.problem import Problem, make_problem
from planner.calibration.fit.screen import screen
from planner.calibration.fit.solver import penalised
from planner.calibration.fit.split import cross_fit
from planner.calibration.fit.targets import QUANTITIES, Floats, targets_of
from planner.domain.run_record import RunRecord

_FAR = 4.0


def worth(records: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """By coefficient: ``without`` and ``with``, mean errors over left-out sources, and ``error``,
    of their difference.

    An error far outside the noise counts as four times the noise.
    """
    targets = [target for record, scenario in screen(records).used for target in targets_of(record, scenario)]
    found: dict[str, dict[str, float]] = {}
    for quantity in QUANTITIES:
        whole = make_problem(quantity, targets, EARNED)
        best = _errors(whole)
        for knob in () if whole is None else whole.knobs:
            left = _errors(make_problem(quantity, targets, EARNED - {knob.coefficient}))
            gains = [without - with_it for without, with_it in zip(left, best, strict=True)]
            found[knob.coefficient] = {
                "without": round(fmean(left), 4),
                "with": round(fmean(best), 4),
                "error": round(stdev(gains) / len(gains) ** 0.5, 4),
            }
    return found


def _errors(problem: Problem | None) -> list[float]:
    if problem is None:
        return []
    errors = cross_fit(problem).held_out_errors
    return [_mean_error(problem, errors, group) for group in problem.groups]


def _mean_error(problem: Problem, errors: Floats, group: str) -> float:
    """Mean absolute log error that counts, over the readings of one group, by their grades.

    An error far outside the noise is a mechanism that no coefficient can mend.  It counts as at most ``_FAR``
    times the noise, so that such rows do not decide how strong a prior should be.
    """
    limit = _FAR * problem.noise
    mine = [i for i, target in enumerate(problem.targets) if target.group == group]
    counted = np.abs(penalised(errors, [target.bound for target in problem.targets]))
    sizes = np.minimum(counted, limit)[mine]
    return float(np.average(sizes, weights=[problem.targets[i].weight for i in mine]))
