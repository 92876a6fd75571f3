"""The readings of one quantity and the numbers that a fit may move: weights, slopes, and who shares what."""

from __future__ import annotations

import numpy as np
import pytest

from planner.calibration.fit.problem import Problem, machine_problem, make_problem
from planner.domain.uncertainty.calibration import Offset
from planner.domain.uncertainty.hierarchy import FREEDOM
from tests.planner.calibration.simulated import SHAPES, TRUTH, problem_of, simulated


def test_documents_count_alike_however_long() -> None:
    """The weights of a long table add up to those of a short one."""
    records = [*simulated({"doc-a": TRUTH}), *simulated({"doc-b": TRUTH}, shapes=SHAPES[:3])]
    problem = problem_of(records)
    weights = problem.weights()
    totals = {
        g: sum(w for w, t in zip(weights, problem.targets, strict=True) if t.group == g)
        for g in problem.groups
    }
    assert totals["doc-a"] == pytest.approx(totals["doc-b"])


def one_shape(*machines: str) -> Problem:
    """The problem of one reading of memory and one of time from each machine."""
    return problem_of(simulated(dict.fromkeys(machines, TRUTH), shapes=SHAPES[:1]), "throughput")


def test_slopes_are_those_of_the_errors() -> None:
    """A step of a hundredth of a spread moves each reading as far as its slope says."""
    problem = one_shape("doc-a", "doc-b")
    start = np.zeros((1, len(problem.knobs)))
    errors, slopes = problem.linearise(start)
    assert errors == pytest.approx(problem.errors(start))
    for column in range(len(problem.knobs)):
        moved = start.copy()
        moved[0, column] = 0.01
        found = (problem.errors(moved) - errors)[0] / 0.01
        assert found == pytest.approx(slopes[0, :, column], rel=0.02, abs=1e-4)


def test_effects_of_a_machine_move_its_own_readings_alone() -> None:
    """The rate of one card has no slope at a reading of another one."""
    problem = one_shape("doc-a", "doc-b")
    _, slopes = problem.linearise(np.zeros((1, len(problem.knobs))))
    own = [(knob, column) for column, knob in enumerate(problem.knobs) if knob.level == "host"]
    assert own
    for knob, column in own:
        moved = [
            target.host for target, slope in zip(problem.targets, slopes[0, :, column], strict=True) if slope
        ]
        assert set(moved) == {knob.key}
    assert problem.is_shared.sum() == len(problem.knobs) - len(own)


def test_the_problem_of_some_knobs_holds_the_others_where_they_are() -> None:
    """With all numbers but the first one at rest, errors are those of the whole problem."""
    problem = one_shape("doc-a", "doc-b")
    point = np.full((1, len(problem.knobs)), 0.5)
    rest = [
        Offset(knob, float(n), 1.0) for knob, n in zip(problem.knobs, problem.offsets(point)[0], strict=True)
    ]
    alone = problem.only([0], rest[1:])
    assert alone.knobs == problem.knobs[:1]
    assert alone.errors(point[:, :1]) == pytest.approx(problem.errors(point))


def test_without_a_reading_there_is_no_problem() -> None:
    """Records of memory and time say nothing of host RAM, neither for all nor for one machine."""
    targets = one_shape("doc-a").targets
    assert make_problem("host_memory", targets, FREEDOM) is None
    assert machine_problem("host_memory", targets, (), "mine") is None


def test_a_machine_of_its_own_has_its_own_number_for_whatever_moves_its_readings() -> None:
    """Nothing of it is shared, and every reading is of the machine."""
    problem = machine_problem("throughput", one_shape("doc-a").targets, (), "mine")
    assert problem is not None
    assert {(knob.level, knob.key) for knob in problem.knobs} == {("host", "mine")}
    assert {target.host for target in problem.targets} == {"mine"}
    assert not problem.is_shared.any()
