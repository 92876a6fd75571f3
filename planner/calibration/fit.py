"""Robust, bounded least squares towards physical priors; many fits at once, each on its own part of the readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration.problem import Problem
from planner.calibration.targets import Floats, penalised

# How many times a prior may count beside its own spread.  The last one is no fit at all of what machines share.
STRENGTHS: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0, 30.0, 10_000.0)
DEFAULT_STRENGTH = 3.0
# Residuals beyond this many standard deviations count linearly instead of squared.
_ROBUST_FROM = 1.5
_FAR = 4.0
_MAX_ROUNDS = 8
_MAX_STEP = 1.5
_CONVERGED = 0.01


@dataclass(frozen=True, slots=True)
class Solution:
    """Fitted points: one row a fit, one column a knob; ``spread`` is one standard deviation after the fit, in prior spreads.

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


def solve(problem: Problem, weights: Floats, strengths: Sequence[float]) -> Solution:
    """Fit once for each row of ``weights`` (fits x readings; 0: not seen), each with its own prior strength.

    Gauss-Newton: all fits are linearised together, which costs little more than one, each linear problem is solved by
    ``scipy.optimize.least_squares``; a step that does not lower the objective is halved.
    """
    search = _Search(problem, weights, strengths)
    for _ in range(_MAX_ROUNDS):
        fits = np.flatnonzero(search.moving)
        if not len(fits):
            break
        errors, slopes = problem.linearise(search.points[fits])
        for row, fit in enumerate(fits):
            search.advance(int(fit), _Linear(search.points[fit].copy(), errors[row], slopes[row]))
    spread = np.stack([_posterior(problem, search.slopes[i], weights[i], strengths[i]) for i in range(len(weights))])
    return Solution(search.kept, spread, problem.errors(search.kept))


class _Search:
    """State of many fits: where each is, the best it has been, and whether it still moves.  None depends on another."""

    def __init__(self, problem: Problem, weights: Floats, strengths: Sequence[float]) -> None:
        n_fits, n_knobs = len(weights), len(problem.knobs)
        self._problem, self._weights, self._strengths = problem, weights, strengths
        self.points = np.zeros((n_fits, n_knobs))
        self.kept = np.zeros((n_fits, n_knobs))
        self.slopes = np.zeros((n_fits, len(problem.targets), n_knobs))
        self.moving = np.ones(n_fits, dtype=bool)
        self._lowest = np.full(n_fits, np.inf)

    def advance(self, fit: int, linear: _Linear) -> None:
        """One step of one fit from its linearisation; a step that did not lower the objective is halved instead."""
        weights, strength = self._weights[fit], self._strengths[fit]
        cost = _objective(self._problem, linear.errors, linear.point, weights, strength)
        if cost > self._lowest[fit]:
            step = (self.kept[fit] - linear.point) / 2
        else:
            self._lowest[fit], self.kept[fit], self.slopes[fit] = cost, linear.point, linear.slopes
            step = solve_linear(self._problem, linear, weights, strength) - linear.point
        self.points[fit] = linear.point + np.clip(step, -_MAX_STEP, _MAX_STEP)
        self.moving[fit] = np.max(np.abs(step)) > _CONVERGED


def solve_linear(problem: Problem, linear: _Linear, weights: Floats, strength: float) -> Floats:
    """The point that minimises the robust objective of a linearised problem."""
    from scipy.optimize import least_squares

    seen = weights > 0
    errors, slopes = linear.errors[seen], linear.slopes[seen]
    scale = np.sqrt(weights[seen]) / problem.noise
    bounds = [target.bound for target, used in zip(problem.targets, seen, strict=True) if used]
    pull = np.sqrt(_pulls(problem, strength))

    def residuals(point: Floats) -> Floats:
        return np.concatenate(
            [scale * _robust(_one_sided(errors + slopes @ (point - linear.point), bounds), problem), pull * point]
        )

    def jacobian(point: Floats) -> Floats:
        counted = _one_sided(errors + slopes @ (point - linear.point), bounds)
        slope = np.where(counted == 0.0, 0.0, _robust_slope(counted, problem)) * scale
        return np.vstack([slope[:, None] * slopes, np.diag(pull)])

    start = linear.point
    solution: Floats = least_squares(residuals, start, jac=jacobian, method="lm", xtol=1e-4, ftol=1e-6, max_nfev=30).x
    return solution


def _pulls(problem: Problem, strength: float) -> Floats:
    """How hard each knob is held to its prior; what belongs to one machine always by its own spread."""
    pulls: Floats = np.where(problem.is_shared, strength, 1.0)
    return pulls


def _one_sided(errors: Floats, bounds: Sequence[str]) -> Floats:
    low = np.array([bound == "at_least" for bound in bounds])
    high = np.array([bound == "at_most" for bound in bounds])
    return np.where(low, np.minimum(errors, 0.0), np.where(high, np.maximum(errors, 0.0), errors))


def _robust(errors: Floats, problem: Problem) -> Floats:
    """Residual whose square is the soft-L1 loss: quadratic near 0, linear far away."""
    limit = _ROBUST_FROM * problem.noise
    shaped: Floats = np.sign(errors) * limit * np.sqrt(2 * (np.sqrt(1 + (errors / limit) ** 2) - 1))
    return shaped


def _robust_slope(errors: Floats, problem: Problem) -> Floats:
    """Derivative of :func:`_robust`."""
    scaled = np.abs(errors) / (_ROBUST_FROM * problem.noise)
    root = np.sqrt(1 + scaled**2)
    inner = np.sqrt(np.maximum(2 * (root - 1), 1e-12))
    slope: Floats = np.where(scaled < 1e-4, 1.0, scaled / root / inner)
    return slope


def _objective(problem: Problem, errors: Floats, point: Floats, weights: Floats, strength: float) -> float:
    counted = _one_sided(errors, [target.bound for target in problem.targets])
    return float(
        np.sum(weights * (_robust(counted, problem) / problem.noise) ** 2) + np.sum(_pulls(problem, strength) * point**2)
    )


def _posterior(problem: Problem, slopes: Floats, weights: Floats, strength: float) -> Floats:
    """Standard deviation of each knob after the fit, in units of its prior's spread (Laplace approximation).

    With the prior at most at its own strength: holding a number harder does not make it better known.
    """
    scaled = slopes * (np.sqrt(weights) / problem.noise)[:, None]
    covariance = np.linalg.inv(scaled.T @ scaled + np.diag(_pulls(problem, min(strength, 1.0))))
    spread: Floats = np.sqrt(np.diag(covariance))
    return spread


def mean_error(problem: Problem, errors: Floats, group: str) -> float:
    """Mean absolute log error that counts, over the readings of one group, by their grades.

    An error far outside the noise is a mechanism that no coefficient can mend: it counts as just that far, so that such rows do
    not decide how strong a prior should be.
    """
    limit = _FAR * problem.noise
    mine = [i for i, target in enumerate(problem.targets) if target.group == group]
    sizes = [min(abs(penalised(errors[i : i + 1], problem.targets[i].bound)[0]), limit) for i in mine]
    return float(np.average(sizes, weights=[problem.targets[i].weight for i in mine]))
