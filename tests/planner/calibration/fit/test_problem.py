"""The readings of one quantity and the numbers that a fit may move: weights, slopes, and who shares what."""

from __future__ import annotations

import numpy as np
import pytest

from planner.calibration.fit.problem import Problem, machine_problem, make_problem
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


def test_without_a_reading_there_is_no_problem() -> None:
    """Records of memory and time say nothing of host RAM, neither for all nor for one machine."""
    targets = one_shape("doc-a").targets
    assert make_problem("host_memory", targets, FREEDOM) is None
    assert machine_problem("host_memory", targets, (), "mine") is None


def test_a_machine_of_its_own_has_its_own_number_for_whatever_moves_its_readings() -> None:
    """Nothing of it is shared."""
    problem = machine_problem("throughput", one_shape("doc-a").targets, (), "mine")
    assert problem is not None
    assert {(knob.level, knob.key) for knob in problem.knobs} == {("host", "mine")}


def test_offsets_of_an_earlier_fit_stay() -> None:
    """With half a spread of every number in the base, rest is where the problem without a base has it."""
    targets = one_shape("doc-a").targets
    plain = machine_problem("throughput", targets, (), "mine")
    assert plain is not None
    half = np.full((1, len(plain.knobs)), 0.5)
    based = machine_problem("throughput", targets, plain.fitted(half[0], half[0]), "mine")
    assert based is not None
    assert based.errors(np.zeros_like(half)) == pytest.approx(plain.errors(half))
