"""``plan validate FILE...``: predictions against records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cli.blas import one_thread_for_small_matrices
from planner.cli.outcome import Outcome, human_text
from planner.errors import ExitCode, UnknownNameError, UsageError

if TYPE_CHECKING:
    from planner.calibration.fit.screen import LeftOut
    from planner.calibration.score.validate import Validation
    from planner.domain.uncertainty.calibration import Calibration
    from planner.domain.uncertainty.coefficients import Coefficients
    from planner.records import RecordSet
    from planner.report.render.layout import Section
    from planner.report.validation.recorded_history import HistoryScore

CV_MODES = ("none", "source")


@dataclass(frozen=True, slots=True)
class ValidateOptions:
    """How to answer: cross-validation, each row as well, the format,
    and with which calibration (``None``: the one that ships).

    ``explain``: id of one row to walk through instead of scoring all.  ``history``:
    replay recorded histories too.
    """

    cv: str = "none"
    rows: bool = False
    output_format: str = "human"
    calibration: str | None = None
    explain: str | None = None
    history: bool = False


def validate_files(files: Sequence[str], options: ValidateOptions) -> Outcome:
    """Score what ``plan`` predicts against the records of ``files``;
    exit code 6 when no row at all is modelled.

    Raises:
        UnknownNameError: no such cross-validation.
        InputFileError: a file or a row that cannot be used, or a calibration of other formulas.
    """
    if options.cv not in CV_MODES:
        raise UnknownNameError(
            "cross-validation", options.cv[:60], CV_MODES, hint=f"allowed: {', '.join(CV_MODES)}"
        )
    if options.explain is not None and options.output_format == "json":
        raise UsageError("--explain ROW is a text for people: leave --json out, or say --format markdown")
    if options.explain is not None and options.history:
        raise UsageError("--explain walks one row, --history compares all of them: leave one out")
    if options.cv == "source":
        if options.explain is not None:
            raise UsageError("--explain walks one row with one calibration; leave --cv out")
        if options.calibration is not None:
            raise UsageError("--cv source makes its own fits; leave --calibration out")
        if options.history:
            raise UsageError("--history is about single runs; leave --cv out")
        return _cross_validate(files, options)
    from planner.api.calibration_choice import chosen_calibration
    from planner.calibration.fit.unused import doubtful
    from planner.calibration.score.validate import validate
    from planner.records import read_records
    from planner.records.calibration_file import DEFAULT_CALIBRATION

    model = chosen_calibration(options.calibration or DEFAULT_CALIBRATION).model
    records = read_records(files, by_row=True)
    if options.explain is not None:
        return _explain(records, model, options)
    validation = validate(records, model)
    histories = None
    if options.history:
        from planner.cli.histories import score_histories

        histories = score_histories(records, validation.rows)
    return _scores(_Scored(validation, doubtful(records.records), histories), options)


@dataclass(frozen=True, slots=True)
class _Scored:
    """What one call of ``plan validate`` has to say."""

    validation: Validation
    doubtful: tuple[LeftOut, ...]
    histories: Mapping[str, HistoryScore | str] | None


def _scores(scored: _Scored, options: ValidateOptions) -> Outcome:
    """All scores in the format that was asked for."""
    validation, histories = scored.validation, scored.histories
    modelled = any(row.prediction is not None for row in (*validation.rows, *validation.cpu_rows))
    code = ExitCode.FITS if modelled else ExitCode.NOT_MODELLED
    if options.output_format == "json":
        from planner.report.validation.document import validation_json

        text = validation_json(
            validation, with_rows=options.rows, histories=histories, doubtful=scored.doubtful
        )
        return Outcome(text, code)
    from planner.report.validation.recorded_history import history_sections
    from planner.report.validation.sections import doubtful_section, validation_sections

    wrong = (doubtful_section(scored.doubtful),) if scored.doubtful else ()
    sections = (
        *validation_sections(validation, with_rows=options.rows),
        *wrong,
        *history_sections(histories or {}),
    )
    return Outcome(_text(sections, options), code)


def _explain(records: RecordSet, model: Coefficients | Calibration, options: ValidateOptions) -> Outcome:
    """One row: measured against predicted, then the ``plan --explain`` of its scenario."""
    from dataclasses import replace

    from planner.calibration.score.validate import validate
    from planner.domain.uncertainty.calibration import Calibration
    from planner.predicting import predict_with
    from planner.report.prediction.sections import explained_sections
    from planner.report.prediction.subject import Subject
    from planner.report.validation.phase_errors import row_phases
    from planner.report.validation.row import row_sections

    row_id = options.explain or ""
    mine = tuple(record for record in records.records if record.id == row_id)
    if not mine:
        raise UnknownNameError("row", row_id[:60], [record.id for record in records.records])
    validation = validate(replace(records, records=mine), model)
    (row,) = (*validation.rows, *validation.cpu_rows)
    phases = row_phases(row, validation.phases.get(row_id, ()))
    sections = (
        *row_sections(row, records.places[row_id], validation.calibration),
        *((phases,) if phases.blocks else ()),
    )
    if row.scenario is None:
        return Outcome(_text(sections, options), ExitCode.NOT_MODELLED)
    coefficients = model.coefficients_for(row.scenario) if isinstance(model, Calibration) else model
    subject = Subject(row.scenario, predict_with(row.scenario, model, explain=True), None, True, coefficients)
    return Outcome(_text((*sections, *explained_sections(subject)), options), ExitCode.FITS)


def _text(sections: Sequence[Section], options: ValidateOptions) -> str:
    if options.output_format == "markdown":
        from planner.report.render.markdown import to_markdown

        return to_markdown(sections)
    return human_text(sections)


def _cross_validate(files: Sequence[str], options: ValidateOptions) -> Outcome:
    one_thread_for_small_matrices()
    from planner.calibration.score.cross_validate import cross_validate
    from planner.records import read_records

    result = cross_validate(read_records(files, by_row=True))
    modelled = any(row.prediction is not None for row in result.held_out.rows)
    code = ExitCode.FITS if modelled else ExitCode.NOT_MODELLED
    if options.output_format == "json":
        from planner.report.validation.document import cross_validation_json

        return Outcome(cross_validation_json(result, with_rows=options.rows), code)
    from planner.report.validation.cross_validation import cross_validation_sections

    sections = cross_validation_sections(result, with_rows=options.rows)
    return Outcome(_text(sections, options), code)
