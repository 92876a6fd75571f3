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
from planner.calibration.fit.solver import mean_error
from planner.calibration.fit.split import cross_fit
from planner.calibration.fit.targets import QUANTITIES, targets_of
from planner.domain.run_record import RunRecord


def worth(records: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """By coefficient: ``without`` and ``with``, mean errors over left-out sources, and ``error``,
    of their difference.

    Without effects of single machines, which no other machine's prediction uses.  An error far outside the
    noise counts as four times the noise, as in the choice of a fit's strength.
    """
    targets = [target for record, scenario in screen(records).used for target in targets_of(record, scenario)]
    found: dict[str, dict[str, float]] = {}
    for quantity in QUANTITIES:
        whole = make_problem(quantity, targets, EARNED)
        if whole is None:
            continue
        shared = np.flatnonzero(whole.is_shared).tolist()
        best = _errors(whole.only(shared, ()))
        for column in shared:
            left = _errors(whole.only([each for each in shared if each != column], ()))
            gains = [without - with_it for without, with_it in zip(left, best, strict=True)]
            found[whole.knobs[column].coefficient] = {
                "without": round(fmean(left), 4),
                "with": round(fmean(best), 4),
                "error": round(stdev(gains) / len(gains) ** 0.5, 4),
            }
    return found


def _errors(problem: Problem) -> list[float]:
    errors = cross_fit(problem).held_out_errors
    return [mean_error(problem, errors, group) for group in problem.groups]
