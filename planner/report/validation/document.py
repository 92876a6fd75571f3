"""Validation -> JSON text by the published schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from planner.calibration.fit.calibrate import Fitted
from planner.calibration.fit.screen import LeftOut
from planner.calibration.score.cross_validate import CrossValidation
from planner.calibration.score.rows import OomResult, RowScore
from planner.calibration.score.validate import Validation
from planner.documents import DocumentPart, at, document_text
from planner.domain.prediction import Verdict
from planner.domain.run_record import Outcome
from planner.domain.term import Phase
from planner.domain.uncertainty.calibration import Offset
from planner.domain.uncertainty.hierarchy import PRIOR_BY_NAME, moved
from planner.domain.uncertainty.interval import NOMINAL_COVERAGE
from planner.report.validation.recorded_history import HistoryScore
from planner.report.validation.row_words import recipe_label

# The JSON form of ``plan validate``, ``planner/validate@2``.
# These models write it and their JSON Schema documents it.
#
# Errors are fractions, (predicted - measured) / measured of the quantity as it was printed; bytes are
# integers; ``null`` means that a source has nothing to compare.

VALIDATE_SCHEMA_ID: Final = "planner/validate@2"

Count = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0)]


class ErrorSummaryPart(DocumentPart):
    """Errors of one quantity.

    ``mape`` is the mean of absolute errors, ``median_signed`` their median with sign (positive: too much was
    predicted), ``max_abs`` the largest, that of ``worst_row``.  ``quantities`` counts what was compared;
    ``groups`` says over how many source groups ``mape`` and ``median_signed`` are averaged.
    """

    n: Count
    mape: Fraction
    median_signed: float
    max_abs: Fraction
    worst_row: str
    quantities: Annotated[dict[str, int], BeforeValidator(dict)]
    groups: Count


class BoundPart(DocumentPart):
    """Predictions against installed host memory: ``ok`` of ``n`` are not above it."""

    n: Count
    ok: Count
    max_excess: Fraction
    worst_row: str


class OomPart(DocumentPart):
    """``false_fit``: said fits, ran out of GPU memory.  ``false_oom``: said does not fit, but ran."""

    n_oom: Count
    n_ok: Count
    false_fit: Count
    false_oom: Count
    uncertain_ok: Count
    uncertain_oom: Count
    no_verdict: Count


class LeftOutPart(DocumentPart):
    """A row that could not be compared."""

    id: str = at("record", "id")
    reason: str = at("why_left_out")


class RankPart(DocumentPart):
    """Of ``n_pairs`` pairs of rows of one document, measured more than 10 % apart,
    how many are predicted in the same order.
    """

    n_pairs: Annotated[int, Field(ge=1)]
    n_right: Count
    share: float


class SourcePart(DocumentPart):
    """Errors over the rows of one source.  ``censored`` rows filled the card,
    so their reading is capped by it.

    ``offload_throughput``: of those rows of ``throughput`` that offload, whose time the host decides.
    """

    source: str
    n_rows: Count
    not_modelled: Count
    memory: ErrorSummaryPart | None
    throughput: ErrorSummaryPart | None
    offload_throughput: ErrorSummaryPart | None
    throughput_ranks: RankPart | None
    memory_ranks: RankPart | None
    host_memory: ErrorSummaryPart | None
    oom: OomPart
    host_bound: BoundPart | None = Field(description="installed memory, an upper bound; in no mean error")
    censored: Count = at("n_censored")
    not_modelled_rows: list[LeftOutPart]
    not_timed_rows: list[LeftOutPart]


class ComparisonPart(DocumentPart):
    """One measured number and its prediction; the unit is in the name of the quantity."""

    quantity: str
    measured: int | float
    predicted: int | float
    error: float
    note: str


class RowPhasePart(DocumentPart):
    """One phase of one record.  ``null``: a CPU has no such figure,
    or the phase was not gone through to its end.
    """

    phase: Phase
    allocated: ComparisonPart | None
    reserved: ComparisonPart | None
    host_rss_bytes: int | None
    predicted_allocated_bytes: int | None


class PhaseErrorPart(DocumentPart):
    """Errors of one phase at one level, over all records that carry readings."""

    phase: Phase
    level: Literal["allocated", "reserved"]
    errors: ErrorSummaryPart


class TermPairPart(DocumentPart):
    """One group of terms in bytes at the measured peak."""

    name: str
    measured_bytes: int
    predicted_bytes: int


class HistoryPart(DocumentPart):
    """The allocator history of one record beside its prediction; ``not_scored`` says why there is none."""

    record_id: str
    not_scored: str | None = None
    phase: str | None = None
    allocated_bytes: int | None = None
    pairs: list[TermPairPart] = Field(default=[])
    recorded_reserved_bytes: int | None = None
    replayed_reserved_bytes: int | None = None


class RowPart(DocumentPart):
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
    phases: list[RowPhasePart] = Field(description="empty where the record carries no readings")


class ScoresPart(DocumentPart):
    """The same records scored with other coefficients."""

    sources: list[SourcePart]
    overall: SourcePart


class CoefficientFitPart(DocumentPart):
    """One free number: the value that it gives its coefficient alone,
    and the range of one standard deviation around it.
    """

    name: str
    level: str
    key: str
    prior: float
    value: float
    low: float
    high: float
    unit: str


class UnusedPart(DocumentPart):
    """A record that the fit left out, by the name of the rule."""

    id: str = at("record_id")
    rule: str
    reason: str


class FitPart(DocumentPart):
    """What was fitted.  ``coverage``: of the held-out intervals."""

    formulas: str
    free_numbers: Count
    groups: list[str]
    rows: Count
    coefficients: list[CoefficientFitPart]
    left_out: list[UnusedPart]
    nominal_coverage: float
    coverage: dict[str, float]


class ValidationDocument(DocumentPart):
    """Everything that ``plan validate`` says about some files of records.

    With ``cv`` ``source``, ``sources`` are held out: each group is predicted by a fit that never saw it.
    """

    schema_: Literal["planner/validate@2"] = Field(default=VALIDATE_SCHEMA_ID, alias="schema")
    cv: Literal["none", "source"]
    calibration: str
    sources: list[SourcePart]
    overall: SourcePart = Field(
        description="errors: unweighted means over source groups with at least 3 compared rows; counts: sums"
    )
    rows: list[RowPart] | None = Field(description="null without --rows")
    unread: list[str] = Field(
        description="lines that a crash left unfinished, of a newer schema, or with an id that was there"
    )
    doubtful: list[UnusedPart] = Field(
        default=[], description="rows with something wrong, scored all the same"
    )
    phases: list[PhaseErrorPart] = Field(
        description="by phase, over all records of a GPU that carry readings"
    )
    cpu_rows: list[RowPart] = Field(description="runs without a GPU, which are in no number above")
    histories: list[HistoryPart] | None = Field(default=None, description="null without --history")
    in_sample: ScoresPart | None = Field(
        default=None, description="by the fit on all groups; null without --cv source"
    )
    prior: ScoresPart | None = Field(default=None, description="without any fit; null without --cv source")
    fit: FitPart | None = Field(default=None, description="null without --cv source")


def validation_json(
    validation: Validation,
    *,
    with_rows: bool,
    histories: Mapping[str, HistoryScore | str] | None = None,
    doubtful: Sequence[LeftOut] = (),
) -> str:
    """The validation as indented JSON, ending in a newline."""
    more = {
        "histories": None if histories is None else [_history(*each) for each in histories.items()],
        "doubtful": doubtful,
    }
    return document_text(validation_document(validation, with_rows=with_rows, **more))


def cross_validation_json(result: CrossValidation, *, with_rows: bool) -> str:
    """The cross-validation as indented JSON, ending in a newline."""
    more = {"cv": "source", "in_sample": result.in_sample, "prior": result.prior, "fit": _fit(result.fitted)}
    return document_text(validation_document(result.held_out, with_rows=with_rows, **more))


def validation_document(validation: Validation, *, with_rows: bool, **more: Any) -> ValidationDocument:
    """The validation as the document that the schema describes, with ``more`` fields of it."""
    return ValidationDocument.model_validate(
        {
            "cv": "none",
            "calibration": validation.calibration,
            "sources": validation.sources,
            "overall": validation.overall,
            "rows": [_row(row, validation) for row in validation.rows] if with_rows else None,
            "unread": validation.unread,
            "phases": validation.phase_errors,
            "cpu_rows": [_row(row, validation) for row in validation.cpu_rows],
            **more,
        }
    )


def _history(record_id: str, score: HistoryScore | str) -> HistoryScore | dict[str, str]:
    return {"record_id": record_id, "not_scored": score} if isinstance(score, str) else score


def _fit(fitted: Fitted) -> dict[str, Any]:
    """What was fitted, on what, and what was left out."""
    calibration = fitted.calibration
    return {
        "formulas": calibration.formulas,
        "free_numbers": len(calibration.offsets),
        "groups": calibration.groups,
        "rows": calibration.n_rows,
        "coefficients": [_coefficient(offset) for offset in calibration.offsets],
        "left_out": fitted.left_out,
        "nominal_coverage": NOMINAL_COVERAGE,
        "coverage": dict(calibration.coverage),
    }


def _coefficient(offset: Offset) -> dict[str, Any]:
    knob = offset.knob
    prior = PRIOR_BY_NAME[knob.coefficient]
    low, value, high = (
        float(moved(knob.coefficient, offset.offset + step * offset.spread)) for step in (-1, 0, 1)
    )
    found = {
        "name": knob.coefficient,
        "level": knob.level,
        "key": knob.key,
        "prior": prior.value,
        "unit": prior.unit,
    }
    return {**found, "value": value, "low": low, "high": high}


def _row(row: RowScore, validation: Validation) -> dict[str, Any]:
    record, prediction = row.record, row.prediction
    return {
        **{name: getattr(record, name) for name in ("id", "source", "model", "outcome", "censored")},
        **{name: getattr(row, name) for name in ("memory", "throughput", "host_memory", "host_bound", "oom")},
        "recipe": recipe_label(row),
        "not_modelled": row.not_modelled or None,
        "verdict": prediction.verdict if prediction else None,
        "limiting_phase": prediction.memory.limiting_phase if prediction else None,
        "phases": validation.phases.get(record.id, ()),
    }
