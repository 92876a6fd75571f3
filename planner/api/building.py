"""A subject of a report -> the plain numbers that Python gets of it, rounded as the documents round them."""

from __future__ import annotations

from typing import Any

from planner.api.answers import Answer, FileAnswer, Host, Peak, Run, Step, Term
from planner.domain.prediction import (
    HostPrediction,
    MemoryLevel,
    MemoryPrediction,
    TimePrediction,
    Uncertainty,
)
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import RunPlan
from planner.domain.uncertainty.interval import Interval
from planner.report.prediction.subject import Subject, exit_code_of, level_of, terms_at_peak, terms_elsewhere


def answer_of(subject: Subject) -> Answer:
    """What Python gets of one subject."""
    return Answer(**_parts(subject))


def file_answer_of(subject: Subject, **about: Any) -> FileAnswer:
    """What Python gets of one config file; ``about`` are the fields that an :class:`Answer` lacks."""
    return FileAnswer(**_parts(subject), **about)


def whole(n_bytes: Number) -> int:
    """Bytes as the documents round them."""
    return round(float(n_bytes))


def whole_interval(interval: Interval | None) -> Interval | None:
    """An interval of bytes as the documents round it."""
    return None if interval is None else Interval(round(interval.low), round(interval.high))


def _parts(subject: Subject) -> dict[str, Any]:
    prediction, scenario = subject.prediction, subject.scenario
    memory, sure = prediction.memory, prediction.uncertainty
    return {
        "verdict": prediction.verdict,
        "probability": prediction.fits_probability,
        "why": prediction.reason,
        "needs_bytes": whole(memory.must_have_bytes),
        "limit_bytes": memory.limit_bytes,
        "peak": _peak(memory, sure),
        "host": _host(prediction.host, sure),
        "step": None if prediction.time is None else _step(prediction.time, sure),
        "run": _run(scenario.run, prediction.time),
        "levers": tuple(subject.levers or ()),
        "stacks": tuple(subject.stacks),
        "terms": _terms(subject),
        "assumptions": scenario.assumptions,
        "warnings": subject.warnings,
        "calibration": prediction.calibration,
        "exit_code": int(exit_code_of(prediction)),
        "_subject": subject,
    }


def _peak(memory: MemoryPrediction, sure: Uncertainty | None) -> Peak:
    intervals: dict[MemoryLevel, Interval] = dict(sure.memory) if sure else {}
    return Peak(
        phase=memory.limiting_phase,
        allocated_bytes=whole(memory.allocated_peak_bytes),
        reserved_bytes=whole(memory.reserved_peak_bytes),
        driver_bytes=whole(memory.driver_peak_bytes),
        allocated_interval=whole_interval(intervals.get("allocated")),
        reserved_interval=whole_interval(intervals.get("reserved")),
        driver_interval=whole_interval(intervals.get("driver")),
    )


def _host(host: HostPrediction, sure: Uncertainty | None) -> Host:
    return Host(
        needs_bytes=whole(host.required_per_node_bytes),
        peak_bytes=whole(host.per_node_bytes),
        process_bytes=whole(host.per_process_bytes),
        process_interval=whole_interval(sure.host if sure else None),
        available_bytes=host.available_bytes,
    )


def _step(time: TimePrediction, sure: Uncertainty | None) -> Step:
    return Step(
        seconds=float(time.step_s),
        interval=sure.step if sure else None,
        samples_per_s=float(time.samples_per_s),
        tokens_per_s=float(time.tokens_per_s),
        mfu=None if time.mfu is None else float(time.mfu),
    )


def _run(run: RunPlan, time: TimePrediction | None) -> Run | None:
    if run.n_samples is None:
        return None
    seconds, cost = (None, None) if time is None else (time.run_time_s, time.cost_usd)
    return Run(run.n_samples, run.epochs, _maybe(seconds), _maybe(cost))


def _maybe(number: Number | None) -> float | None:
    return None if number is None else float(number)


def _terms(subject: Subject) -> tuple[Term, ...]:
    prediction = subject.prediction
    at_peak, elsewhere = terms_at_peak(prediction), terms_elsewhere(prediction)
    places = [(term, True) for term in at_peak] + [(term, False) for term in elsewhere]
    return tuple(
        Term(term.name, term.label, whole(term.n_bytes), level_of(term), here, term.formula)
        for term, here in places
    )
