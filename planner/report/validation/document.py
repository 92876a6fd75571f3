"""Validation -> JSON text by the published schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.calibration.fit.calibrate import Fitted
from planner.calibration.fit.screen import LeftOut
from planner.calibration.goals import Goal, goals
from planner.calibration.misses import Evidence
from planner.calibration.score.cross_validate import CrossValidation
from planner.calibration.score.metrics import ErrorSummary
from planner.calibration.score.rows import OomResult, RowScore
from planner.calibration.score.validate import SourceScore, Validation
from planner.domain.calibration import Offset
from planner.domain.hierarchy import PRIOR_BY_NAME, moved
from planner.domain.interval import NOMINAL_COVERAGE
from planner.domain.prediction import Verdict
from planner.domain.run_record import Outcome
from planner.domain.term import Phase
from planner.report.render.json_document import document_text
from planner.report.validation.history import HistoryScore
from planner.report.validation.misses import misses_of
from planner.report.validation.words import recipe_label

# The JSON form of ``plan validate``, ``planner/validate@1``.  These models write it and their JSON Schema documents it.
#
# Errors are fractions, (predicted - measured) / measured of the quantity as it was printed; bytes are integers; ``null`` means
# that a source has nothing to compare.

VALIDATE_SCHEMA_ID: Final = "planner/validate@1"

Count = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class ErrorPart(_Part):
    """Errors of one quantity.

    ``mape`` is the mean of absolute errors, ``median_signed`` their median with sign (positive: too much was predicted),
    ``max_abs`` the largest, that of ``worst_row``.  ``quantities`` counts what was compared; ``groups`` says over how many source
    groups ``mape`` and ``median_signed`` are averaged.
    """

    n: Count
    mape: Fraction
    median_signed: float
    max_abs: Fraction
    worst_row: str
    quantities: dict[str, int]
    groups: Count


class BoundPart(_Part):
    """Predictions against installed host memory: ``ok`` of ``n`` are not above it."""

    n: Count
    ok: Count
    max_excess: Fraction
    worst_row: str


class OomPart(_Part):
    """``false_fit``: said fits, ran out of GPU memory.  ``false_oom``: said does not fit, but ran."""

    n_oom: Count
    n_ok: Count
    false_fit: Count
    false_oom: Count
    uncertain_ok: Count
    uncertain_oom: Count
    no_verdict: Count


class LeftOutPart(_Part):
    """A row that could not be compared."""

    id: str
    reason: str


class RankPart(_Part):
    """Of ``n_pairs`` pairs of rows of one document, measured more than 10 % apart, how many are predicted in the same order."""

    n_pairs: Annotated[int, Field(ge=1)]
    n_right: Count
    share: float


class SourcePart(_Part):
    """Errors over the rows of one source.  ``censored`` rows filled the card, so their reading is capped by it.

    ``offload_throughput``: of those rows of ``throughput`` that offload, whose time the host decides.
    """

    source: str
    n_rows: Count
    not_modelled: Count
    memory: ErrorPart | None
    throughput: ErrorPart | None
    offload_throughput: ErrorPart | None
    throughput_ranks: RankPart | None
    memory_ranks: RankPart | None
    host_memory: ErrorPart | None
    oom: OomPart
    host_bound: BoundPart | None = Field(description="installed memory, an upper bound; in no mean error")
    censored: Count
    not_modelled_rows: list[LeftOutPart]
    not_timed_rows: list[LeftOutPart]


class ComparisonPart(_Part):
    """One measured number and its prediction; the unit is in the name of the quantity."""

    quantity: str
    measured: int | float
    predicted: int | float
    error: float
    note: str


class PhasePart(_Part):
    """One phase of one record.  ``null``: a CPU has no such figure, or the phase was not gone through to its end."""

    phase: Phase
    allocated: ComparisonPart | None
    reserved: ComparisonPart | None
    host_rss_bytes: int | None
    predicted_allocated_bytes: int | None


class PhaseErrorPart(_Part):
    """Errors of one phase at one level, over all records that carry readings."""

    phase: Phase
    level: Literal["allocated", "reserved"]
    errors: ErrorPart


class TermPairPart(_Part):
    """One group of terms in bytes at the measured peak."""

    name: str
    measured_bytes: int
    predicted_bytes: int


class HistoryPart(_Part):
    """The allocator history of one record beside its prediction; ``not_scored`` says why there is none."""

    record_id: str
    not_scored: str | None = None
    phase: str | None = None
    allocated_bytes: int | None = None
    pairs: list[TermPairPart] = []
    recorded_reserved_bytes: int | None = None
    replayed_reserved_bytes: int | None = None


class RowPart(_Part):
    """One record: what was compared, and the verdict with what it was worth."""

    id: str
    source: str
    model: str
    recipe: str
    outcome: Outcome
    censored: bool | None
    not_modelled: str | None
    verdict: Verdict | None
    limiting_phase: Phase | None
    memory: ComparisonPart | None
    throughput: ComparisonPart | None
    host_memory: ComparisonPart | None
    host_bound: ComparisonPart | None
    oom: OomResult | None
    phases: list[PhasePart] = Field(description="empty where the record carries no readings")


class MissPart(_Part):
    """Rows that are far off, with what is thought to be the reason and how sure that is."""

    quantity: str
    pattern: str
    mechanism: str
    evidence: Evidence
    rows: list[str]


class ScoresPart(_Part):
    """The same records scored with other coefficients."""

    sources: list[SourcePart]
    overall: SourcePart


class CoefficientFitPart(_Part):
    """One free number: the value that it gives its coefficient alone, and the range of one standard deviation around it."""

    name: str
    level: str
    key: str
    prior: float
    value: float
    low: float
    high: float
    unit: str


class UnusedPart(_Part):
    """A record that the fit left out, by the name of the rule."""

    id: str
    rule: str
    reason: str


class FitPart(_Part):
    """What was fitted.  ``prior_strength``: chosen inside all groups, by quantity.  ``coverage``: of the held-out intervals.

    ``scale``: how much each cause of scatter counts in an interval, chosen with all groups; ``fixed_bytes``
    in bytes, the others are factors.  ``coverage`` is with choices that leave the judged group out.
    """

    formulas: str
    free_numbers: Count
    prior_strength: dict[str, float]
    groups: list[str]
    rows: Count
    coefficients: list[CoefficientFitPart]
    left_out: list[UnusedPart]
    nominal_coverage: float
    coverage: dict[str, float]
    scale: dict[str, float]


class GoalPart(_Part):
    """One aim: bounds of the target (null: none), and what is reached over ``n`` rows, pairs or sources; all are fractions."""

    title: str
    fit: str
    n: Count
    low: float | None
    high: float | None
    reached: float
    met: bool | None = Field(description="null where there is no target")


class ValidationDocument(_Part):
    """Everything that ``plan validate`` says about some files of records.

    With ``cv`` ``source``, ``sources`` are held out: each group is predicted by a fit that never saw it.
    """

    schema_: Literal["planner/validate@1"] = Field(default=VALIDATE_SCHEMA_ID, alias="schema")
    cv: Literal["none", "source"]
    calibration: str
    sources: list[SourcePart]
    overall: SourcePart = Field(
        description="errors: unweighted means over source groups with at least 3 compared rows; counts: sums"
    )
    rows: list[RowPart] | None = Field(description="null without --rows")
    misses: list[MissPart] | None = Field(description="published rows that are far off; null without --rows")
    unread: list[str] = Field(description="lines that a crash left unfinished, of a newer schema, or with an id that was there")
    doubtful: list[UnusedPart] = Field(default=[], description="rows with something wrong, scored all the same")
    phases: list[PhaseErrorPart] = Field(description="by phase, over all records of a GPU that carry readings")
    cpu_rows: list[RowPart] = Field(description="runs without a GPU, which are in no number above")
    histories: list[HistoryPart] | None = Field(default=None, description="null without --history")
    in_sample: ScoresPart | None = Field(default=None, description="by the fit on all groups; null without --cv source")
    prior: ScoresPart | None = Field(default=None, description="without any fit; null without --cv source")
    fit: FitPart | None = Field(default=None, description="null without --cv source")
    goals: list[GoalPart] | None = Field(
        default=None, description="aims that the records speak of, without anchors; null without --cv source"
    )


def validation_json_schema() -> dict[str, Any]:
    """JSON Schema of :class:`ValidationDocument`."""
    schema = ValidationDocument.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": VALIDATE_SCHEMA_ID, **schema}


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
