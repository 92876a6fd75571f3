"""Robust, bounded least squares towards physical priors; many fits at once,
each on its own part of the readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration.fit.problem import Problem
from planner.calibration.fit.targets import Floats

# Residuals beyond this many standard deviations count less than squared.
_ROBUST_FROM = 1.5
_MAX_ROUNDS = 8
_REWEIGHTINGS = 2
_MAX_STEP = 1.5
_CONVERGED = 0.01


@dataclass(frozen=True, slots=True)
class Solution:
    """Fitted points: one row a fit, one column a knob; ``spread`` is one standard deviation after the fit,
    in prior spreads.

    ``errors`` are the log errors of all readings under each fit, those that it did not see included.
    """

    points: Floats
    spread: Floats
    errors: Floats


@dataclass(frozen=True, slots=True)
class _Linear:
    """A problem linearised at ``point``: log errors and slopes of each reading."""

    point: Floats
    errors: Floats
    slopes: Floats


def solve(problem: Problem, weights: Floats) -> Solution:
    """Fit once for each row of ``weights`` (fits x readings; 0: not seen).

    Gauss-Newton.  All fits are linearised together, which costs little more than one.  Each robust linear
    problem is solved by reweighted normal equations.  A step that does not lower the objective is halved.
    """
    search = _Search(problem, weights)
    for _ in range(_MAX_ROUNDS):
        fits = np.flatnonzero(search.moving)
        if not len(fits):
            break
        errors, slopes = problem.linearise(search.points[fits])
        for row, fit in enumerate(fits):
            search.advance(int(fit), _Linear(search.points[fit].copy(), errors[row], slopes[row]))
    errors = problem.errors(search.kept)
    spread = np.stack(
        [_posterior(problem, linear, weights[i]) for i, linear in enumerate(search.linear(errors))]
    )
    return Solution(search.kept, spread, errors)


class _Search:
    """State of many fits: where each is, the best it has been, and whether it still moves.
    None depends on another.
    """

    def __init__(self, problem: Problem, weights: Floats) -> None:
        n_fits, n_knobs = len(weights), len(problem.knobs)
        self._problem, self._weights = problem, weights
        self.points = np.zeros((n_fits, n_knobs))
        self.kept = np.zeros((n_fits, n_knobs))
        self.slopes = np.zeros((n_fits, len(problem.targets), n_knobs))
        self.moving = np.ones(n_fits, dtype=bool)
        self._lowest = np.full(n_fits, np.inf)

    def linear(self, errors: Floats) -> list[_Linear]:
        """Each fit's linearisation where it ended; ``errors`` are those of the points kept."""
        return [_Linear(*each) for each in zip(self.kept, errors, self.slopes, strict=True)]

    def advance(self, fit: int, linear: _Linear) -> None:
        """One step of one fit from its linearisation;
        a step that did not lower the objective is halved instead.
        """
        weights = self._weights[fit]
        cost = objective(self._problem, linear.errors, linear.point, weights)
        if cost > self._lowest[fit]:
            step = (self.kept[fit] - linear.point) / 2
        else:
            self._lowest[fit], self.kept[fit], self.slopes[fit] = cost, linear.point, linear.slopes
            step = _solve_linear(self._problem, linear, weights) - linear.point
        self.points[fit] = linear.point + np.clip(step, -_MAX_STEP, _MAX_STEP)
        self.moving[fit] = np.any(np.abs(step) > _CONVERGED)


def _solve_linear(problem: Problem, linear: _Linear, weights: Floats) -> Floats:
    """The point that minimises the robust objective of a linearised problem,
    by iteratively reweighted least squares.

    A reading counts by its robust weight at the last point, and not at all on the right side of a bound.
    Knobs that no seen reading depends on stay at their prior.
    """
    seen = weights > 0
    moved = np.any(linear.slopes[seen] != 0.0, axis=0)
    errors, slopes = linear.errors[seen], linear.slopes[seen][:, moved]
    bounds = [target.bound for target, used in zip(problem.targets, seen, strict=True) if used]
    start = linear.point[moved]
    target = slopes @ start - errors
    point: Floats = start
    for _ in range(_REWEIGHTINGS):
        counted = penalised(errors + slopes @ (point - start), bounds)
        each = np.where(
            counted == 0.0, 0.0, weights[seen] / problem.noise**2 * _robust_weight(counted, problem)
        )
        point = np.asarray(
            np.linalg.solve(
                (slopes * each[:, None]).T @ slopes + np.eye(len(start)), slopes.T @ (each * target)
            ),
            dtype=np.float64,
        )
    solution = np.zeros_like(linear.point)
    solution[moved] = point
    return solution


def penalised(errors: Floats, bounds: Sequence[str]) -> Floats:
    """The parts of log errors that count: all, or only what lies on the wrong side of a bound."""
    low = np.array([bound == "at_least" for bound in bounds])
    high = np.array([bound == "at_most" for bound in bounds])
    return np.where(low, np.minimum(errors, 0.0), np.where(high, np.maximum(errors, 0.0), errors))


def _robust(errors: Floats, problem: Problem) -> Floats:
    """Residual whose square is the robust loss: quadratic near 0; far away linear for times,
    logarithmic for bytes.

    Bytes follow from the configuration.  A reading of bytes far outside the noise is of another
    configuration, or the formulas lack a mechanism: it says nothing about coefficients (Cauchy's loss).  A
    time may just be that of a slow machine (soft-L1).
    """
    limit = _ROBUST_FROM * problem.noise
    squared = (errors / limit) ** 2
    loss = 2 * (np.sqrt(1 + squared) - 1) if problem.quantity == "throughput" else np.log1p(squared)
    shaped: Floats = np.sign(errors) * limit * np.sqrt(loss)
    return shaped


def _robust_weight(errors: Floats, problem: Problem) -> Floats:
    """Weight of a squared residual under the robust loss."""
    squared = (errors / (_ROBUST_FROM * problem.noise)) ** 2
    weight: Floats = 1 / np.sqrt(1 + squared) if problem.quantity == "throughput" else 1 / (1 + squared)
    return weight


def objective(problem: Problem, errors: Floats, point: Floats, weights: Floats) -> float:
    """What a fit minimises: robust squared residuals in units of the noise,
    and squared distances from the priors.
    """
    counted = penalised(errors, [target.bound for target in problem.targets])
    return float(np.sum(weights * (_robust(counted, problem) / problem.noise) ** 2) + np.sum(point**2))


def _posterior(problem: Problem, linear: _Linear, weights: Floats) -> Floats:
    """Standard deviation of each knob after the fit, in units of its prior's spread (Laplace approximation).

    A bound that is kept says nothing, and a far reading as much as it counts in the fit.
    """
    counted = penalised(linear.errors, [target.bound for target in problem.targets])
    says = np.array([target.bound == "both" for target in problem.targets]) | (counted != 0.0)
    scaled = (
        linear.slopes * (np.sqrt(weights * says * _robust_weight(counted, problem)) / problem.noise)[:, None]
    )
    covariance = np.linalg.inv(scaled.T @ scaled + np.eye(len(problem.knobs)))
    spread: Floats = np.sqrt(np.diag(covariance))
    return spread
