"""Which pull a fit takes: the prior's own strength, unless another predicts clearly better;
and what a far reading weighs.
"""

from __future__ import annotations

import numpy as np

from planner.calibration.fit.solver import Pull, objective, usual_pull
from planner.calibration.fit.split import clearly_best
from tests.planner.calibration.fit.test_solver import EVERYWHERE, problem_of
from tests.planner.calibration.simulated import simulated

WEAK, USUAL, STRONG = Pull(0.3), Pull(1.0), Pull(10.0)


def test_a_difference_within_its_error_changes_nothing() -> None:
    """The least mean wins by less than groups scatter, so the prior counts once."""
    scores = {
        WEAK: np.array([0.02, 0.09, 0.05]),
        USUAL: np.array([0.05, 0.06, 0.06]),
        STRONG: np.array([0.06, 0.07, 0.07]),
    }
    assert clearly_best(scores, USUAL) == USUAL
    assert clearly_best(scores, None) == WEAK


def test_a_pull_that_is_better_everywhere_is_taken() -> None:
    """The same gain in every group is no chance."""
    scores = {WEAK: np.array([0.02, 0.05, 0.04]), USUAL: np.array([0.05, 0.081, 0.07])}
    assert clearly_best(scores, USUAL) == WEAK


def test_the_error_of_a_gain_is_that_of_a_sample() -> None:
    """Gains of 0.0205 and -0.0005 have a mean of 0.0100, whose standard error is 0.0105 with ``n - 1``."""
    scores = {WEAK: np.array([0.0300, 0.0305]), USUAL: np.array([0.0505, 0.0300])}
    assert clearly_best(scores, USUAL) == USUAL


def test_only_fits_without_effects_of_machines_have_a_usual_pull() -> None:
    """Bytes keep their priors' own strength; times choose, because machines may explain instead."""
    records = simulated(EVERYWHERE)
    assert usual_pull(problem_of(records)) == USUAL
    assert usual_pull(problem_of(records, "throughput")) is None


def test_a_far_reading_of_bytes_stops_counting() -> None:
    """From 3 to 30 standard deviations off, a reading of bytes costs little more;
    one of time costs ten times as much.
    """
    records = simulated(EVERYWHERE)
    growth = {}
    for quantity in ("memory", "throughput"):
        problem = problem_of(records, quantity)
        point, weights = np.zeros(len(problem.knobs)), problem.weights()
        near, far = (
            objective(problem, np.full(len(problem.targets), times * problem.noise), point, weights, USUAL)
            for times in (3, 30)
        )
        growth[quantity] = far / near
    assert growth["memory"] < 4
    assert growth["throughput"] > 10
