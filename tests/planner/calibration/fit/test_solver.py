"""The fit: finds coefficients that records were made with, holds to its priors elsewhere,
never looks at what is held out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner.calibration.fit.calibrate import EARNED, Fitted, calibrate
from planner.calibration.fit.solver import objective, solve
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.coefficients import PRIORS, Coefficients
from planner.domain.uncertainty.hierarchy import FREEDOM, moved
from planner.intake.given.request import from_record
from planner.intake.resolve import resolve
from planner.memory.outside import context_bytes
from planner.program.job import job_of
from tests.planner.calibration.simulated import (
    EVERYWHERE,
    MACHINES,
    SHAPES,
    TRUTH,
    blank,
    problem_of,
    simulate,
    simulated,
)


@cache
def fitted_to_truth() -> Fitted:
    """A calibration on records of four machines that all follow ``TRUTH``."""
    return calibrate(simulated(EVERYWHERE), free=FREEDOM)


def resolved(record: RunRecord, fitted: Fitted) -> Coefficients:
    """Coefficients that the calibration gives to the configuration of ``record``."""
    return fitted.calibration.coefficients_for(resolve(from_record(record), force=True))


def context_on(machine: str, coefficients: Coefficients) -> float:
    """Bytes of context on the card of one simulated machine: readings tell the sum of its two parts,
    hardly each.
    """
    scenario = resolve(from_record(simulated({machine: TRUTH})[0]), force=True)
    return float(context_bytes(job_of(scenario, coefficients)))


@pytest.mark.parametrize("name", ["context_bytes", "matmul_efficiency", "memory_efficiency"])
def test_the_fit_moves_from_the_prior_to_the_truth(name: str) -> None:
    """Four documents with 1 % noise carry each coefficient a third of the way at least;
    priors and machines hold the rest.
    """
    record = simulated({"doc-a": TRUTH})[0]
    found, true, prior = (
        context_on("doc-a", each) if name == "context_bytes" else getattr(each, name)
        for each in (resolved(record, fitted_to_truth()), TRUTH, Coefficients())
    )
    assert abs(found - true) < 0.67 * abs(true - prior)


@pytest.mark.parametrize("quantity", ["memory", "throughput"])
def test_known_coefficients_are_recovered(quantity: str) -> None:
    """Where exact readings count for much more than the priors, the solver finds what they were made with."""
    problem = problem_of(simulated(EVERYWHERE, noise=0.0), quantity)
    found = solve(problem, 100 * problem.weights()[None, :])
    assert np.max(np.abs(found.errors)) < 0.02
    fitted = {each.knob.coefficient: each.offset for each in problem.fitted(found.points[0], found.spread[0])}
    reached = {name: moved(name, fitted.get(name, 0.0)) for name in FREEDOM}
    freed = {knob.coefficient for knob in problem.knobs}
    contexts = {name: reached[name] for name in ("context_bytes", "thread_memory_bytes")}
    assert quantity != "memory" or context_on("doc-a", replace(TRUTH, **contexts)) == pytest.approx(
        context_on("doc-a", TRUTH), rel=0.05
    )
    for name in {"matmul_efficiency", "memory_efficiency"} & freed:
        # The rate of a machine's GPU multiplies both efficiencies, so only products can be told.
        assert reached[name] * reached["gpu_rate"] == pytest.approx(getattr(TRUTH, name), rel=0.05)


def test_held_out_predictions_are_better_than_without_a_fit() -> None:
    """What four machines share is learned from three of them."""
    for fit in fitted_to_truth().fits:
        prior = fit.problem.errors(np.zeros((1, len(fit.problem.knobs))))[0]
        assert np.mean(np.abs(fit.held_out_errors)) < 0.4 * np.mean(np.abs(prior))


def test_a_group_that_is_held_out_is_not_seen() -> None:
    """Readings of a group may be anything: the fit that leaves it out gives the same numbers."""
    records = simulated(EVERYWHERE)
    spoiled = [
        replace(each, peak_memory_mib=3e3, step_time_s=99.0) if each.source_group == "doc-c" else each
        for each in records
    ]
    before, after = (calibrate(each, free=FREEDOM).without["doc-c"] for each in (records, spoiled))
    for first, second in zip(before.offsets, after.offsets, strict=True):
        assert (first.knob, first.offset) == (second.knob, pytest.approx(second.offset, abs=1e-6))


def test_one_source_alone_moves_nothing_that_all_share() -> None:
    """No other could say whether it is a fact of all machines; two can."""
    for machines, freed in ((["doc-a"], False), (["doc-a", "doc-b"], True)):
        fitted = calibrate(simulated(dict.fromkeys(machines, TRUTH), shapes=SHAPES[:1]), free=FREEDOM)
        assert bool(fitted.calibration.offsets) is freed


def test_a_wild_reading_is_outvoted() -> None:
    """One reading that is ten times too large moves the fit by less than a fifth of its honest spread."""
    records = simulated(EVERYWHERE)
    wild = [
        replace(records[0], peak_memory_mib=min(79_000.0, 10 * (records[0].peak_memory_mib or 0))),
        *records[1:],
    ]
    points = [
        solve(problem, problem.weights()[None, :]).points[0] for problem in map(problem_of, (records, wild))
    ]
    assert np.max(np.abs(points[0] - points[1])) < 1.0
    assert np.median(np.abs(points[0] - points[1])) < 0.2


def test_a_full_card_is_only_a_lower_bound() -> None:
    """A censored reading below the prediction pulls nothing."""
    censored = [replace(each, censored=True, peak_memory_mib=2_000.0) for each in simulated(EVERYWHERE)]
    problem = problem_of(censored)
    assert np.allclose(solve(problem, problem.weights()[None, :]).points, 0.0, atol=1e-3)


def test_a_fit_never_makes_a_number_less_known() -> None:
    """The spread after the fit is at most the prior's, and readings narrow it."""
    problem = problem_of(simulated(EVERYWHERE))
    spread = solve(problem, problem.weights()[None, :]).spread[0]
    assert np.all(spread <= 1.0 + 1e-9)
    assert np.min(spread) < 0.7


def test_a_far_reading_teaches_what_it_counts() -> None:
    """Readings that the fit hardly counts leave every number nearly as uncertain as if they were not
    there.
    """
    odd = [index % 2 == 1 for index in range(len(simulated(EVERYWHERE)))]
    records = [
        replace(each, peak_memory_mib=0.6 * (each.peak_memory_mib or 0.0)) if is_odd else each
        for each, is_odd in zip(simulated(EVERYWHERE), odd, strict=True)
    ]
    problem = problem_of(records)
    weights = problem.weights()
    with_far, without = solve(problem, np.stack([weights, np.where(odd, 0.0, weights)])).spread
    assert np.min(with_far / without) > 0.99


def test_a_bound_that_is_kept_tells_nothing() -> None:
    """Censored readings below their predictions leave every number as uncertain as it was."""
    problem = problem_of(
        [replace(each, censored=True, peak_memory_mib=2_000.0) for each in simulated(EVERYWHERE)]
    )
    assert np.allclose(solve(problem, problem.weights()[None, :]).spread, 1.0)


def test_readings_make_intervals_where_nothing_is_free() -> None:
    """Without a coefficient to fit, readings are held out as the priors predict them."""
    fitted = calibrate(simulated(EVERYWHERE), free=())
    assert {fit.problem.quantity for fit in fitted.fits} == {"memory", "throughput"}
    for fit in fitted.fits:
        assert fit.offsets(None) == ()
        assert fit.held_out_errors == pytest.approx(fit.problem.errors(np.zeros((1, 0)))[0])
    assert {"memory", "need", "time"} <= {spread.key.of for spread in fitted.calibration.spreads}


def test_free_numbers_are_few_and_named() -> None:
    """Those that earn their place in what ships, each once; int8 rows move one of theirs."""
    generator = np.random.default_rng(7)
    blanks = [replace(blank(*each, "lora", SHAPES[3]), method="int8") for each in MACHINES.items()]
    fitted = calibrate([simulate(each, TRUTH, 0.01, generator) for each in blanks])
    moved = [offset.knob.coefficient for offset in fitted.calibration.offsets]
    assert "int8_relative_speed" in moved
    assert len(moved) == len(set(moved))
    assert set(moved) <= EARNED <= {prior.name for prior in PRIORS} == set(FREEDOM)


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
            objective(problem, np.full(len(problem.targets), times * problem.noise), point, weights)
            for times in (3, 30)
        )
        growth[quantity] = far / near
    assert growth["memory"] < 4
    assert growth["throughput"] > 10
