"""Sections of ``plan validate`` about phases: errors of each over all records, each record's own,
and runs on a CPU, apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.calibration.score.metrics import ErrorSummary
from planner.calibration.score.phases import PhaseErrors, PhaseScore
from planner.calibration.score.rows import Comparison, RowScore, is_cpu
from planner.calibration.score.validate import Validation
from planner.report.render.layout import Column, Grid, Note, Row, Section
from planner.report.render.numbers import duration, gib, percent
from planner.report.validation.row_words import recipe_label, signed_percent

_SUMMARY_COLUMNS = (
    Column("phase"),
    Column("level"),
    *(Column(title, "right") for title in ("runs", "MAPE", "median", "worst")),
    Column("worst row"),
)
# Short, so that all of them are whole in 100 columns.
_ROW_COLUMNS = (
    Column("phase"),
    *(
        Column(title, "right")
        for level in ("allocated", "reserved")
        for title in (level, "predicted", "error")
    ),
)
_CPU_COLUMNS = (
    Column("row"),
    Column("job"),
    Column("outcome"),
    *(Column(title, "right") for title in ("step", "host RSS", "in phase", "a GPU would hold")),
)
_CPU_NOTE = (
    "A CPU has no device memory: these runs are in no error above.  Host RSS is that of the whole process, "
    "in GiB; the last column is what the formulas place on a GPU in that phase."
)


def phase_sections(validation: Validation, *, with_rows: bool) -> tuple[Section, ...]:
    """Empty sections are left to the caller to drop."""
    sections = [_summary(validation.phase_errors)]
    if with_rows:
        sections += [row_phases(row, validation.phases.get(row.record.id, ())) for row in validation.rows]
    sections.append(_cpu(validation))
    if with_rows:
        sections += [row_phases(row, validation.phases.get(row.record.id, ())) for row in validation.cpu_rows]
    return tuple(sections)


def _summary(errors: Sequence[PhaseErrors]) -> Section:
    rows = tuple(Row((each.phase, each.level, *_error_cells(each.errors))) for each in errors)
    return Section("GPU memory by phase", (Grid(_SUMMARY_COLUMNS, rows),) if rows else ())


def _error_cells(errors: ErrorSummary) -> tuple[str, ...]:
    shares = (percent(errors.mape), signed_percent(errors.median_signed), percent(errors.max_abs))
    return (str(errors.n), *shares, errors.worst_row)


def row_phases(row: RowScore, phases: Sequence[PhaseScore]) -> Section:
    """The phases of one record in GiB; no blocks where it carries none."""
    if is_cpu(row.record):
        return _cpu_phases(row, phases)
    compared = [each for each in phases if each.allocated is not None or each.reserved is not None]
    grid = Grid(
        _ROW_COLUMNS,
        tuple(Row((each.phase, *_cells(each.allocated), *_cells(each.reserved))) for each in compared),
    )
    return Section(
        f"Phases of {row.record.id}: {row.record.model} {recipe_label(row)}, in GiB",
        (grid,) if compared else (),
    )


def _cpu_phases(row: RowScore, phases: Sequence[PhaseScore]) -> Section:
    """Host RSS is no measure of device memory, so nothing is called an error."""
    columns = (Column("phase"), Column("host RSS", "right"), Column("a GPU would hold", "right"))
    cells = [
        (each.phase, _size(each.host_rss_bytes), _size(each.predicted_allocated_bytes)) for each in phases
    ]
    grid = Grid(columns, tuple(map(Row, cells)))
    return Section(f"Phases of {row.record.id} on a CPU, in GiB", (grid,) if phases else ())


def _size(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else gib(n_bytes)


def _cells(comparison: Comparison | None) -> tuple[str, str, str]:
    if comparison is None:
        return ("-", "-", "-")
    return gib(comparison.measured), gib(comparison.predicted), signed_percent(comparison.error)


def _cpu(validation: Validation) -> Section:
    rows = tuple(_cpu_row(row, validation.phases.get(row.record.id, ())) for row in validation.cpu_rows)
    return Section("Runs on a CPU, apart", (Grid(_CPU_COLUMNS, rows), Note(_CPU_NOTE, "dim")) if rows else ())


def _cpu_row(row: RowScore, phases: Sequence[PhaseScore]) -> Row:
    record = row.record
    step = "-" if record.step_time_s is None else duration(record.step_time_s)
    highest = max(
        (each for each in phases if each.host_rss_bytes),
        key=lambda each: each.host_rss_bytes or 0,
        default=None,
    )
    where = ("-", "-", "-")
    if highest is not None:
        where = (_size(highest.host_rss_bytes), highest.phase, _size(highest.predicted_allocated_bytes))
    return Row((record.id, f"{record.model} {recipe_label(row)}", record.outcome, step, *where))
