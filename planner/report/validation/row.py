"""One measured row walked through: what was read, what was predicted, how they differ."""

from __future__ import annotations

from planner.calibration.score.points import Point, points_of
from planner.calibration.score.rows import QUANTITIES, Comparison, RowScore
from planner.domain.uncertainty.interval import NOMINAL_COVERAGE
from planner.report.render.layout import Column, Grid, Note, Row, Section
from planner.report.render.numbers import whole_percent
from planner.report.validation.row_words import amount, quantity_label, recipe_label, signed_percent

_COLUMNS = (
    Column("quantity"),
    Column("measured", "right"),
    Column("predicted", "right"),
    Column("error", "right"),
    Column(f"{whole_percent(NOMINAL_COVERAGE)} interval"),
    Column("measured is"),
    Column("note"),
)


def row_sections(row: RowScore, place: str, calibration: str) -> tuple[Section, ...]:
    """Where the row stands, what its source says, and measured against predicted.

    The terms, coefficients and settings behind the prediction are the report of ``plan --explain``,
    which follows it.
    """
    record = row.record
    head = Section(
        f"Row {record.id}",
        (
            Note(
                f"{recipe_label(row)}; {record.source}, {record.locator or 'no locator'}, grade "
                f"{record.grade or 'unknown'}",
                "strong",
            ),
            Note(f"Read at {place}; predicted with calibration {calibration}."),
            *((Note(f"Notes of the record: {record.notes}", "dim"),) if record.notes else ()),
        ),
    )
    comparisons = [(name, getattr(row, name)) for name in QUANTITIES if getattr(row, name) is not None]
    if not comparisons:
        return (
            head,
            Section("", (Note(f"Nothing was compared: the run ended as {record.outcome}.", "warn"),)),
        )
    grid = Grid(_COLUMNS, tuple(_row(row, *each) for each in comparisons))
    return (head, Section("Measured against predicted", (grid,)))


def _interval_text(point: Point) -> str:
    """The ends of an interval in the unit of its quantity; empty without one."""
    interval = point.interval
    return (
        ""
        if interval is None
        else f"{amount(point.quantity, interval.low)} to {amount(point.quantity, interval.high)}"
    )


def _row(row: RowScore, name: str, comparison: Comparison) -> Row:
    quantity = comparison.quantity
    points = points_of((row,), name)
    interval = _interval_text(points[0]) if points else ""
    return Row(
        (
            quantity_label(quantity),
            amount(quantity, comparison.measured),
            amount(quantity, comparison.predicted),
            signed_percent(comparison.error),
            interval,
            "" if not interval else ("inside" if points[0].is_inside else "outside"),
            comparison.note,
        )
    )
