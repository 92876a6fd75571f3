"""Robust, bounded least squares towards physical priors; many fits at once,
each on its own part of the readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration.fit.problem import Problem
from planner.calibration.fit.targets import Floats, penalised


@dataclass(frozen=True, slots=True)
class Pull:
    """How many times a prior counts beside its own spread: of what machines share,
    and of what is one machine's own.
    """

    shared: float = 1.0
    machine: float = 1.0


# What a fit may choose from.  10,000 is no fit at all of what is shared;
# 40 leaves machines hardly any effects of their own.
_SHARED_PULLS = (0.3, 1.0, 3.0, 10.0, 30.0, 10_000.0)
_PULLS_WITH_MACHINES = (
    *(Pull(shared) for shared in (1.0, 4.0, 12.0, 10_000.0)),
    Pull(0.3, 40.0),
    Pull(1.0, 40.0),
)
# One group alone has no other to choose with: its fit stays closer to the priors.
DEFAULT_PULL = Pull(3.0)
# Spreads are stated with their priors, so a prior counts once unless another pull is clearly better.  Not
# with effects of machines: there weak priors of what is shared predict worse than none.
_USUAL_PULL = Pull(1.0)
# Residuals beyond this many standard deviations count less than squared.
_ROBUST_FROM = 1.5
_FAR = 4.0
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
class Linear:
    """A problem linearised at ``point``: log errors and slopes of each reading."""

    point: Floats
    errors: Floats
    slopes: Floats


def pulls_to_try(problem: Problem) -> tuple[Pull, ...]:
    """Pulls of which a fit of this problem may take one."""
    return tuple(map(Pull, _SHARED_PULLS)) if problem.is_shared.all() else _PULLS_WITH_MACHINES


def usual_pull(problem: Problem) -> Pull | None:
    """The pull that a fit of this problem takes unless another predicts clearly better; ``None``:
    the best, by however little.
    """
    return _USUAL_PULL if problem.is_shared.all() else None


def solve(problem: Problem, weights: Floats, pulls: Sequence[Pull]) -> Solution:
    """Fit once for each row of ``weights`` (fits x readings; 0: not seen),
    each with its own pull towards the priors.

    Gauss-Newton.  All fits are linearised together, which costs little more than one.  Each robust linear
    problem is solved by reweighted normal equations.  A step that does not lower the objective is halved.
    """
    search = _searched(problem, weights, pulls)
    errors = problem.errors(search.kept)
    spread = np.stack(
        [_posterior(problem, linear, weights[i], pulls[i]) for i, linear in enumerate(search.linear(errors))]
    )
    return Solution(search.kept, spread, errors)


def errors_of_fits(problem: Problem, weights: Floats, pulls: Sequence[Pull]) -> Floats:
    """The errors of :func:`solve` alone:
    how well each number is known after a fit takes as long as the fit.
    """
    return problem.errors(_searched(problem, weights, pulls).kept)


def _searched(problem: Problem, weights: Floats, pulls: Sequence[Pull]) -> _Search:
    """All fits where they ended."""
    search = _Search(problem, weights, pulls)
    for _ in range(_MAX_ROUNDS):
        fits = np.flatnonzero(search.moving)
        if not len(fits):
            break
        errors, slopes = problem.linearise(search.points[fits])
        for row, fit in enumerate(fits):
            search.advance(int(fit), Linear(search.points[fit].copy(), errors[row], slopes[row]))
    return search


class _Search:
    """State of many fits: where each is, the best it has been, and whether it still moves.
    None depends on another.
    """

    def __init__(self, problem: Problem, weights: Floats, pulls: Sequence[Pull]) -> None:
        n_fits, n_knobs = len(weights), len(problem.knobs)
        self._problem, self._weights, self._pulls = problem, weights, pulls
        self.points = np.zeros((n_fits, n_knobs))
        self.kept = np.zeros((n_fits, n_knobs))
        self.slopes = np.zeros((n_fits, len(problem.targets), n_knobs))
        self.moving = np.ones(n_fits, dtype=bool)
        self._lowest = np.full(n_fits, np.inf)

    def linear(self, errors: Floats) -> list[Linear]:
        """Each fit's linearisation where it ended; ``errors`` are those of the points kept."""
        return [Linear(*each) for each in zip(self.kept, errors, self.slopes, strict=True)]

    def advance(self, fit: int, linear: Linear) -> None:
        """One step of one fit from its linearisation;
        a step that did not lower the objective is halved instead.
        """
        weights, pull = self._weights[fit], self._pulls[fit]
        cost = objective(self._problem, linear.errors, linear.point, weights, pull)
        if cost > self._lowest[fit]:
            step = (self.kept[fit] - linear.point) / 2
        else:
            self._lowest[fit], self.kept[fit], self.slopes[fit] = cost, linear.point, linear.slopes
            step = solve_linear(self._problem, linear, weights, pull) - linear.point
        self.points[fit] = linear.point + np.clip(step, -_MAX_STEP, _MAX_STEP)
        self.moving[fit] = np.any(np.abs(step) > _CONVERGED)


def solve_linear(problem: Problem, linear: Linear, weights: Floats, pull: Pull) -> Floats:
    """The point that minimises the robust objective of a linearised problem,
    by iteratively reweighted least squares.

    A reading counts by its robust weight at the last point, and not at all on the right side of a bound.
    Knobs that no seen reading depends on stay at their prior.
    """
    seen = weights > 0
    moved = np.any(linear.slopes[seen] != 0.0, axis=0)
    errors, slopes = linear.errors[seen], linear.slopes[seen][:, moved]
    bounds = [target.bound for target, used in zip(problem.targets, seen, strict=True) if used]
    held = np.diag(_pulls(problem, pull)[moved])
    start = linear.point[moved]
    target = slopes @ start - errors
    point: Floats = start
    for _ in range(_REWEIGHTINGS):
        counted = _one_sided(errors + slopes @ (point - start), bounds)
        each = np.where(
            counted == 0.0, 0.0, weights[seen] / problem.noise**2 * _robust_weight(counted, problem)
        )
        point = np.asarray(
            np.linalg.solve((slopes * each[:, None]).T @ slopes + held, slopes.T @ (each * target)),
            dtype=np.float64,
        )
    solution = np.zeros_like(linear.point)
    solution[moved] = point
    return solution


def _pulls(problem: Problem, pull: Pull) -> Floats:
    """How hard each knob is held to its prior."""
    pulls: Floats = np.where(problem.is_shared, pull.shared, pull.machine)
    return pulls


def _one_sided(errors: Floats, bounds: Sequence[str]) -> Floats:
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


def objective(problem: Problem, errors: Floats, point: Floats, weights: Floats, pull: Pull) -> float:
    """What a fit minimises: robust squared residuals in units of the noise,
    and squared distances from the priors.
    """
    counted = _one_sided(errors, [target.bound for target in problem.targets])
    return float(
        np.sum(weights * (_robust(counted, problem) / problem.noise) ** 2)
        + np.sum(_pulls(problem, pull) * point**2)
    )


def _posterior(problem: Problem, linear: Linear, weights: Floats, pull: Pull) -> Floats:
    """Standard deviation of each knob after the fit, in units of its prior's spread (Laplace approximation).

    With the prior at its own strength, whatever strength predicted best: holding a number harder or looser
    does not change how well it was known before.  A bound that is kept says nothing, and a far reading as
    much as it counts in the fit.
    """
    counted = _one_sided(linear.errors, [target.bound for target in problem.targets])
    says = np.array([target.bound == "both" for target in problem.targets]) | (counted != 0.0)
    scaled = (
        linear.slopes * (np.sqrt(weights * says * _robust_weight(counted, problem)) / problem.noise)[:, None]
    )
    covariance = np.linalg.inv(
        scaled.T @ scaled + np.diag(_pulls(problem, Pull(1.0, max(pull.machine, 1.0))))
    )
    spread: Floats = np.sqrt(np.diag(covariance))
    return spread


def mean_error(problem: Problem, errors: Floats, group: str) -> float:
    """Mean absolute log error that counts, over the readings of one group, by their grades.

    An error far outside the noise is a mechanism that no coefficient can mend.  It counts as at most ``_FAR``
    times the noise, so that such rows do not decide how strong a prior should be.
    """
    limit = _FAR * problem.noise
    mine = [i for i, target in enumerate(problem.targets) if target.group == group]
    sizes = [min(abs(penalised(errors[i : i + 1], problem.targets[i].bound)[0]), limit) for i in mine]
    return float(np.average(sizes, weights=[problem.targets[i].weight for i in mine]))
