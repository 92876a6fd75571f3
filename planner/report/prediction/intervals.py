"""Intervals in words: what a calibration rests on, how often its intervals held,
and what of the job it has not seen.
"""

from __future__ import annotations

from planner.domain.prediction import MemoryLevel, Prediction
from planner.report.render.layout import Note
from planner.report.render.numbers import duration_range, gib, whole_percent


def calibration_notes(prediction: Prediction) -> tuple[Note, ...]:
    """One line on the calibration and how often its intervals are right."""
    sure = prediction.uncertainty
    if sure is None:
        return ()
    inside = ", ".join(f"{of.replace('_', ' ')} {whole_percent(share)}" for of, share in sure.coverage)
    basis = f"Calibration {prediction.calibration}: {sure.basis}"
    nominal = f"{whole_percent(sure.nominal)} intervals"
    checked = f"of readings from sources left out of the fit, {nominal} contain: {inside}"
    worth = checked if inside else f"no second source to check its {nominal} on"
    return (Note(f"{basis}; {worth}.", "dim"),)


def level_interval(prediction: Prediction, level: MemoryLevel) -> str:
    """The interval of one level in GiB, ``4.1 to 5.2``; empty where there is none."""
    intervals = dict(prediction.uncertainty.memory) if prediction.uncertainty else {}
    interval = intervals.get(level)
    return "" if interval is None else f"{gib(interval.low)} to {gib(interval.high)}"


def step_interval(prediction: Prediction) -> str:
    """The interval of the step time in words; empty where there is none."""
    sure = prediction.uncertainty
    if sure is None or sure.step is None:
        return ""
    return f"{whole_percent(sure.nominal)} interval {duration_range(sure.step.low, sure.step.high)}"
