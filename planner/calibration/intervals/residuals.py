"""Held-out residuals of a fit: how far each reading lies from a prediction that never saw its source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from planner.calibration.fit.split import CrossFit
from planner.calibration.fit.targets import Target, on_card
from planner.calibration.intervals.spreads import Residual
from planner.calibration.score.rows import level_read
from planner.domain.prediction import MemoryPrediction
from planner.domain.recipes.recipe import Number
from planner.domain.uncertainty.calibration import Calibration, lengths_of
from planner.domain.uncertainty.coefficients import Coefficients
from planner.domain.uncertainty.interval import SpreadKey, SpreadOf
from planner.domain.uncertainty.scale import memory_scale, time_scale, widened
from planner.memory.replayed_peak import predict_replayed
from planner.predicting import order_reach_bytes
from planner.program.job import job_of
from planner.throughput.step_time import predict_time


def residuals_of(fit: CrossFit, blind: Mapping[str, Calibration]) -> Iterator[Residual]:
    """Held-out log ratios of readings that are values, not bounds,
    with a configuration and a meter that are known.

    An ambiguous row (grade C) or an unnamed meter says nothing about how far a measurement of this kind lies
    from its prediction.
    """
    for target, error in zip(fit.problem.targets, fit.held_out_errors, strict=True):
        known = target.record.grade != "C" and (
            target.quantity != "memory" or target.record.memory_kind is not None
        )
        if target.bound == "both" and known:
            key, scales, reach, below = _judged(target, blind[target.group])
            yield Residual(
                target.record.id,
                target.group,
                spread_of(target),
                key,
                -float(error) - below,
                float(scales[0]),
                target.weight,
                reach,
                float(scales[1]),
            )


_NO_REACH = (0.0, 0.0)


def _judged(
    target: Target, judge: Calibration
) -> tuple[SpreadKey, tuple[Number, Number], tuple[float, float], float]:
    """The class of a reading, scales (above, below) and reach of its prediction by a calibration that never
    saw its group, and how far below that prediction its card shows.
    """
    scenario, of = target.scenario, spread_of(target)
    coefficients, doubt = judge.coefficients_for(scenario), judge.doubt(scenario)
    if of == "host_memory":
        return SpreadKey(of), (widened(1.0, doubt.n_unseen),) * 2, _NO_REACH, 0.0
    if of == "time":
        time = predict_time(scenario, coefficients)
        if time is None:
            raise ValueError(f"{target.record.id} has a reading of time and no prediction of it")
        scales = (time_scale(time, doubt), time_scale(time, doubt, below=True))
        return SpreadKey(of), scales, _NO_REACH, 0.0
    memory = predict_replayed(job_of(scenario, coefficients), minimum_too=False)
    value = float(memory.uncapped_driver_bytes if of == "driver" else getattr(memory, f"{of}_peak_bytes"))
    down, up = _NO_REACH if of == "allocated" else map(float, order_reach_bytes(memory))
    reach = (math.log1p(-down / value), math.log1p(up / value))
    key, below = SpreadKey.memory(of, lengths_of(scenario)), _below(target, coefficients, memory)
    return key, (memory_scale(memory, of, doubt),) * 2, reach, below


def _below(target: Target, coefficients: Coefficients, memory: MemoryPrediction) -> float:
    """How far below what an unlimited card would show the card of a reading shows, as a logarithm:
    0 unless it is full.
    """
    card, of = target.card_bytes, spread_of(target)
    if card is None or memory.uncapped_driver_bytes <= card - target.scenario.hardware.gpu_reserved_bytes:
        return 0.0
    full = predict_replayed(job_of(on_card(target.scenario, card), coefficients))
    return math.log(getattr(full, f"{of}_peak_bytes") / getattr(memory, f"{of}_peak_bytes"))


def spread_of(target: Target) -> SpreadOf:
    """What a reading is of."""
    if target.quantity == "memory":
        return level_read(target.record)
    return "time" if target.quantity == "throughput" else "host_memory"
