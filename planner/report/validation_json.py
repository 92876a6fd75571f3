"""Validation -> JSON text by the published schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from planner.calibration.calibrate import Fitted
from planner.calibration.cross_validate import CrossValidation
from planner.calibration.goals import Goal, goals
from planner.calibration.metrics import ErrorSummary
from planner.calibration.rows import RowScore
from planner.calibration.screen import LeftOut
from planner.calibration.validate import SourceScore, Validation
from planner.domain.calibration import Offset
from planner.domain.hierarchy import PRIOR_BY_NAME, moved
from planner.domain.interval import NOMINAL_COVERAGE
from planner.report.history import HistoryScore
from planner.report.json_document import document_text
from planner.report.misses import misses_of
from planner.report.validation_schema import (
    BoundPart,
    CoefficientFitPart,
    ComparisonPart,
    ErrorPart,
    FitPart,
    GoalPart,
    HistoryPart,
    LeftOutPart,
    MissPart,
    OomPart,
    PhaseErrorPart,
    PhasePart,
    RankPart,
    RowPart,
    ScoresPart,
    SourcePart,
    UnusedPart,
    ValidationDocument,
)
from planner.report.validation_text import recipe_label


def validation_json(
    validation: Validation,
    *,
    with_rows: bool,
    histories: Mapping[str, HistoryScore | str] | None = None,
    doubtful: Sequence[LeftOut] = (),
) -> str:
    """The validation as indented JSON, ending in a newline."""
    flagged = [UnusedPart(id=each.record_id, rule=each.rule, reason=each.reason) for each in doubtful]
    document = validation_document(validation, with_rows=with_rows).model_copy(update={"doubtful": flagged})
    if histories is not None:
        document = document.model_copy(update={"histories": [_history(*each) for each in histories.items()]})
    return document_text(document)


def validation_document(validation: Validation, *, with_rows: bool) -> ValidationDocument:
    """The validation as the document that the schema describes."""
    return ValidationDocument(
        cv="none",
        calibration=validation.calibration,
        sources=[_source(source) for source in validation.sources],
        overall=_source(validation.overall),
        rows=[_row(row, validation) for row in validation.rows] if with_rows else None,
        misses=_misses(validation) if with_rows else None,
        unread=list(validation.unread),
        phases=[
            PhaseErrorPart(phase=each.phase, level=each.level, errors=_summary(each.errors)) for each in validation.phase_errors
        ],
        cpu_rows=[_row(row, validation) for row in validation.cpu_rows],
    )


def _history(record_id: str, score: HistoryScore | str) -> HistoryPart:
    return (
        HistoryPart(record_id=record_id, not_scored=score)
        if isinstance(score, str)
        else HistoryPart.model_validate(score, from_attributes=True)
    )


def _misses(validation: Validation) -> list[MissPart]:
    return [
        MissPart(
            quantity=miss.quantity,
            pattern=miss.group.pattern,
            mechanism=miss.group.mechanism,
            evidence=miss.group.evidence,
            rows=list(miss.rows),
        )
        for miss in misses_of(validation)
    ]


def cross_validation_json(result: CrossValidation, *, with_rows: bool) -> str:
    """The cross-validation as indented JSON, ending in a newline."""
    held_out = validation_document(result.held_out, with_rows=with_rows)
    document = held_out.model_copy(
        update={
            "cv": "source",
            "in_sample": _scores(result.in_sample),
            "prior": _scores(result.prior),
            "fit": fit_part(result.fitted),
            "goals": [_goal(each) for each in goals(result, ())],
        }
    )
    return document_text(document)


def _goal(goal: Goal) -> GoalPart:
    return GoalPart(title=goal.title, fit=goal.fit, n=goal.n, low=goal.low, high=goal.high, reached=goal.reached, met=goal.met)


def fit_part(fitted: Fitted) -> FitPart:
    """What was fitted, on what, and what was left out."""
    calibration = fitted.calibration
    return FitPart(
        formulas=calibration.formulas,
        free_numbers=fitted.free_numbers,
        prior_strength={fit.problem.quantity: fit.strengths[0] for fit in fitted.fits},
        groups=list(calibration.groups),
        rows=calibration.n_rows,
        coefficients=[_coefficient(offset) for offset in calibration.offsets],
        left_out=[UnusedPart(id=each.record_id, rule=each.rule, reason=each.reason) for each in fitted.left_out],
        nominal_coverage=NOMINAL_COVERAGE,
        coverage=dict(calibration.coverage),
        scale={each.name: float(getattr(calibration.scale, each.name)) for each in fields(calibration.scale)},
    )


def _coefficient(offset: Offset) -> CoefficientFitPart:
    knob = offset.knob
    prior = PRIOR_BY_NAME[knob.coefficient]
    low, value, high = (float(moved(knob.coefficient, offset.offset + step * offset.spread)) for step in (-1, 0, 1))
    return CoefficientFitPart(
        name=knob.coefficient,
        level=knob.level,
        key=knob.key,
        prior=prior.value,
        value=value,
        low=low,
        high=high,
        unit=prior.unit,
    )


def _scores(validation: Validation) -> ScoresPart:
    return ScoresPart(sources=[_source(source) for source in validation.sources], overall=_source(validation.overall))


def _source(score: SourceScore) -> SourcePart:
    return SourcePart(
        source=score.source,
        n_rows=score.n_rows,
        not_modelled=len(score.not_modelled),
        memory=_errors(score.memory),
        throughput=_errors(score.throughput),
        offload_throughput=_errors(score.offload_throughput),
        throughput_ranks=RankPart.model_validate(score.throughput_ranks) if score.throughput_ranks else None,
        memory_ranks=RankPart.model_validate(score.memory_ranks) if score.memory_ranks else None,
        host_memory=_errors(score.host_memory),
        oom=OomPart.model_validate(score.oom),
        host_bound=BoundPart.model_validate(score.host_bound) if score.host_bound else None,
        censored=score.n_censored,
        not_modelled_rows=[LeftOutPart(id=row.record.id, reason=row.not_modelled) for row in score.not_modelled],
        not_timed_rows=[LeftOutPart(id=row.record.id, reason=row.not_timed) for row in score.not_timed],
    )


def _errors(summary: ErrorSummary | None) -> ErrorPart | None:
    return None if summary is None else _summary(summary)


def _summary(summary: ErrorSummary) -> ErrorPart:
    names = (name for name in ErrorPart.model_fields if name != "quantities")
    values: dict[str, Any] = {name: getattr(summary, name) for name in names}
    return ErrorPart(**values, quantities=dict(summary.quantities))


def _row(row: RowScore, validation: Validation) -> RowPart:
    record, prediction = row.record, row.prediction
    comparisons = {name: getattr(row, name) for name in ("memory", "throughput", "host_memory", "host_bound")}
    return RowPart(
        id=record.id,
        source=record.source,
        model=record.model,
        recipe=recipe_label(row),
        outcome=record.outcome,
        censored=record.censored,
        not_modelled=row.not_modelled or None,
        verdict=prediction.verdict if prediction else None,
        limiting_phase=prediction.memory.limiting_phase if prediction else None,
        oom=row.oom,
        phases=[PhasePart.model_validate(each) for each in validation.phases.get(record.id, ())],
        **{name: None if each is None else ComparisonPart.model_validate(each) for name, each in comparisons.items()},
    )
