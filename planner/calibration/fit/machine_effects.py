"""Effects of single machines that a calibration keeps: a power cap, a slow host, a link.

The fit of what machines share integrates the effects of every machine out; predictions on a machine that was
measured may use its own.  Only as many are kept as there is room for free numbers: those that explain most,
found by forward selection.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.calibration.fit.problem import Problem
from planner.calibration.fit.solver import Linear, Pull, objective, solve, solve_linear
from planner.calibration.fit.targets import Floats
from planner.domain.uncertainty.calibration import Offset

_OWN_PRIOR = Pull()
# Readings of a machine are its own, so many of them count as many, up to this.
_READINGS_PER_GROUP = 30.0
# A number is worth keeping where it lowers the objective (minus twice a log likelihood)
# by more than this, Akaike's price of one.
_WORTH = 2.0


def kept_effects(problem: Problem, shared: Sequence[Offset], room: int) -> tuple[Offset, ...]:
    """At most ``room`` effects of machines on top of the ``shared`` offsets,
    each fitted by its machine's own readings.
    """
    columns = [int(column) for column in np.flatnonzero(~problem.is_shared)]
    if not (room and columns):
        return ()
    own, weights = problem.only(columns, shared), problem.weights(_READINGS_PER_GROUP)
    chosen = _select(own, weights, room)
    if not chosen:
        return ()
    last = own.only(chosen, shared)
    found = solve(last, weights[None, :], [_OWN_PRIOR])
    values, spreads = last.offsets(found.points)[0], found.spread[0] * last.spread
    return tuple(
        Offset(knob, float(v), float(s)) for knob, v, s in zip(last.knobs, values, spreads, strict=True)
    )


def _select(own: Problem, weights: Floats, room: int) -> list[int]:
    """Columns by forward selection: in each round the one that lowers the objective most,
    from a fresh linearisation.
    """
    point = np.zeros((1, len(own.knobs)))
    chosen: list[int] = []
    while len(chosen) < min(room, len(own.knobs)):
        errors, slopes = own.linearise(point)
        linear = Linear(point[0], errors[0], slopes[0])
        rest = [
            column
            for column in range(len(own.knobs))
            if column not in chosen and np.any(slopes[0][:, column] != 0.0)
        ]
        trials = {column: _refit(own, linear, weights, [*chosen, column]) for column in rest}
        if not trials:
            break
        best = min(trials, key=lambda column: trials[column][0])
        if objective(own, linear.errors, linear.point, weights, _OWN_PRIOR) - trials[best][0] < _WORTH:
            break
        chosen.append(best)
        point = trials[best][1][None, :]
    return chosen


def _refit(own: Problem, linear: Linear, weights: Floats, columns: list[int]) -> tuple[float, Floats]:
    """(objective, point) of the linearised problem when only ``columns`` are free and all others stay where
    they are.
    """
    free = np.zeros(len(own.knobs), dtype=bool)
    free[columns] = True
    part = Linear(linear.point, linear.errors, np.where(free, linear.slopes, 0.0))
    point = np.where(free, solve_linear(own, part, weights, _OWN_PRIOR), linear.point)
    errors = linear.errors + part.slopes @ (point - linear.point)
    return objective(own, errors, point, weights, _OWN_PRIOR), point
