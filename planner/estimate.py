"""The table of contents: Scenario + Coefficients -> Prediction."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.domain.calibration import Calibration
from planner.domain.coefficients import Coefficients
from planner.domain.interval import NOMINAL_COVERAGE, Interval, SpreadOf, interval_around
from planner.domain.prediction import HostPrediction, MemoryLevel, MemoryPrediction, Prediction, Uncertainty, Verdict
from planner.domain.scenario import Scenario
from planner.memory.host import predict_host
from planner.memory.job import job_of
from planner.memory.optimizer import paged_state_bytes
from planner.memory.peak import predict_memory
from planner.throughput.step import predict_time
from planner.units import format_gib

PRIORS = Coefficients()
_LEVELS: tuple[MemoryLevel, ...] = ("allocated", "reserved", "driver")


def estimate(scenario: Scenario, coefficients: Coefficients = PRIORS, *, explain: bool = False) -> Prediction:
    """Memory, host RAM and time of one scenario, with a verdict; with ``explain`` each term carries the numbers of its formula.

    All numeric fields of the scenario are plain numbers; for grids of scenarios see :mod:`planner.search.grid`.
    """
    job = job_of(scenario, coefficients)
    memory = predict_memory(job)
    host = predict_host(job, paged_state_bytes(job))
    verdict, reason = judge(memory, host)
    if explain:
        from planner.memory.details import with_host_details, with_memory_details

        memory, host = with_memory_details(job, memory), with_host_details(job, host)
    return Prediction(
        memory=memory,
        host=host,
        time=predict_time(scenario, coefficients),
        verdict=verdict,
        reason=reason,
        fits_probability=None,
        calibration=coefficients.name,
        warnings=scenario.warnings,
    )


def judge(memory: MemoryPrediction, host: HostPrediction) -> tuple[Verdict, str]:
    """Verdict from the point estimate, and one sentence that says why.

    A job fits when what must be held at once fits: the allocator gives cached blocks back before it fails.
    """
    if memory.limit_bytes is None:
        return "no_verdict", "the memory that CUDA makes visible on this card is unknown; give it with --gpu-memory"
    need, limit = float(memory.must_have_bytes), memory.limit_bytes
    if need > limit:
        over = format_gib(need - limit)
        return (
            "does_not_fit",
            f"{memory.limiting_phase} needs {format_gib(need)} at once, {over} more than the card's {format_gib(limit)}",
        )
    node_bytes, driver_bytes = float(host.required_per_node_bytes), float(memory.uncapped_driver_bytes)
    if host.available_bytes is not None and node_bytes > host.available_bytes:
        short = format_gib(node_bytes - host.available_bytes)
        return "host_memory_short", f"the node needs {format_gib(node_bytes)} of host RAM, {short} more than it has"
    if driver_bytes > limit:
        return (
            "fits",
            f"{memory.limiting_phase} fills the card: the allocator has to return cached blocks to fit {format_gib(limit)}",
        )
    return "fits", f"{memory.limiting_phase} is the largest phase, {format_gib(limit - driver_bytes)} remain free"


def estimate_calibrated(scenario: Scenario, calibration: Calibration, *, explain: bool = False) -> Prediction:
    """:func:`estimate` with fitted coefficients, intervals and P(fits); the verdict says when the limit is inside."""
    prediction = estimate(scenario, calibration.coefficients_for(scenario), explain=explain)
    uncertainty = _uncertainty(prediction, scenario, calibration)
    probability = _fits_probability(prediction.memory, scenario, calibration)
    verdict, reason = prediction.verdict, prediction.reason
    tail = (1 - NOMINAL_COVERAGE) / 2
    if probability is not None and tail < probability < 1 - tail and verdict in ("fits", "does_not_fit"):
        verdict = "uncertain"
        reason = f"the {NOMINAL_COVERAGE:.0%} interval of what it needs at once straddles the card's limit; {reason}"
    return replace(prediction, verdict=verdict, reason=reason, fits_probability=probability, uncertainty=uncertainty)


def predict_with(scenario: Scenario, model: Coefficients | Calibration, *, explain: bool = False) -> Prediction:
    """:func:`estimate` or :func:`estimate_calibrated`, as ``model`` asks for."""
    if isinstance(model, Calibration):
        return estimate_calibrated(scenario, model, explain=explain)
    return estimate(scenario, model, explain=explain)


def _uncertainty(prediction: Prediction, scenario: Scenario, calibration: Calibration) -> Uncertainty:
    spreads = calibration.spreads_for(scenario)

    def around(of: SpreadOf, value: float) -> Interval | None:
        spread = spreads.get(of)
        return None if spread is None else interval_around(spread, value)

    peaks = {level: around(level, float(getattr(prediction.memory, f"{level}_peak_bytes"))) for level in _LEVELS}
    time = prediction.time
    return Uncertainty(
        nominal=NOMINAL_COVERAGE,
        memory=tuple((level, interval) for level, interval in peaks.items() if interval is not None),
        step=None if time is None else around("time", float(time.step_s)),
        host=around("host_memory", float(prediction.host.per_process_bytes)),
        coverage=calibration.coverage,
        basis=f"{calibration.n_rows} rows of {len(calibration.groups)} sources, {calibration.date}",
        extrapolates=calibration.extrapolates(scenario),
    )


def _fits_probability(memory: MemoryPrediction, scenario: Scenario, calibration: Calibration) -> float | None:
    """Share of unseen measurements, at this prediction, that need no more than the limit; ``None`` where that is not known.

    The distribution is that of peaks at the driver's level where lengths are fixed: what must be held at once is taken to scatter
    as they do.  The cache that natural lengths pile up on top is given back before a job fails.
    """
    spread = calibration.spread_for("driver", scenario, "fixed")
    if spread is None or memory.limit_bytes is None:
        return None
    if memory.limit_bytes <= 0:
        return 0.0
    return spread.share_below(math.log(memory.limit_bytes / float(memory.must_have_bytes)))
