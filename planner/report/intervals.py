"""Intervals in words: what a calibration rests on, how often its intervals held, and what of the job it has not seen."""

from __future__ import annotations

from planner.domain.prediction import MemoryLevel, Prediction
from planner.report.layout import Note
from planner.report.numbers import duration, gib, whole_percent


def calibration_notes(prediction: Prediction) -> tuple[Note, ...]:
    """One line on the calibration, and one more where the job is unlike everything that was calibrated on."""
    sure = prediction.uncertainty
    if sure is None:
        return ()
    held = ", ".join(f"{of.replace('_', ' ')} {whole_percent(share)}" for of, share in sure.coverage)
    basis = f"Calibration {prediction.calibration}: {sure.basis}"
    nominal = f"{whole_percent(sure.nominal)} intervals"
    worth = f"{nominal} held on unseen sources: {held}" if held else f"no second source to measure its {nominal} on"
    notes = [Note(f"{basis}; {worth}", "dim")]
    if sure.extrapolates:
        notes.append(Note(f"Extrapolates: no calibrated record has {', '.join(sure.extrapolates)}; intervals are wider.", "warn"))
    return tuple(notes)


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
    return f"{whole_percent(sure.nominal)} interval of the step: {duration(sure.step.low)} to {duration(sure.step.high)}"
