"""One measured row walked through: what was read, what was predicted, how they differ."""

from __future__ import annotations

from collections.abc import Sequence

from planner.calibration.score.change import Moved, RowChange
from planner.calibration.score.points import Point, points_of
from planner.calibration.score.rows import QUANTITIES, Comparison, RowScore
from planner.domain.uncertainty.interval import NOMINAL_COVERAGE
from planner.report.render.layout import Block, Column, Grid, Note, Row, Section
from planner.report.render.numbers import whole_percent
from planner.report.validation.row_words import amount, quantity_label, recipe_label, signed_percent
from planner.units import format_bytes

_COLUMNS = (
    Column("quantity"),
    Column("measured", "right"),
    Column("predicted", "right"),
    Column("error", "right"),
    Column(f"{whole_percent(NOMINAL_COVERAGE)} interval"),
    Column("measured is"),
    Column("note"),
)
_CHANGE_COLUMNS = (
    Column("quantity"),
    *(Column(title, "right") for title in ("measured", "before", "now", "error before", "error now")),
)
_SMALLEST_SHOWN = 0.0005
_SHORT = {"memory": "memory", "throughput": "time or rate", "host_memory": "host RAM"}


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


def change_section(row: RowScore, change: RowChange) -> Section:
    """The row before and after the last calibration,
    and each coefficient that moved with what its move alone does.
    """
    pairs = [(getattr(change.before, name), getattr(row, name)) for name in QUANTITIES]
    rows = tuple(_change_row(before, now) for before, now in pairs if before is not None and now is not None)
    title = f"Since the calibration before, of {change.date}"
    telling = [
        each for each in change.moved if any(abs(part) >= _SMALLEST_SHOWN for part in each.effect.values())
    ]
    quiet = ", ".join(each.prior.name for each in change.moved if each not in telling)
    numbers: tuple[Block, ...] = (
        (Grid(_CHANGE_COLUMNS, rows), *_interval_notes(change.before, row)) if rows else ()
    )
    rest = (Note(f"Moved without changing this row: {quiet}.", "dim"),) if quiet else ()
    if not telling:
        return Section(title, (*numbers, Note("No coefficient moved that changes this row."), *rest))
    seen = [name for name in QUANTITIES if name in change.moved[0].effect]
    columns = (
        Column("coefficient that moved"),
        *(Column(text, "right") for text in ("before", "now")),
        *(Column(f"alone, {_SHORT[name]}", "right") for name in seen),
    )
    return Section(title, (*numbers, Grid(columns, tuple(_moved_row(each, seen) for each in telling)), *rest))


def _change_row(before: Comparison, now: Comparison) -> Row:
    quantity = now.quantity
    amounts = (amount(quantity, each) for each in (now.measured, before.predicted, now.predicted))
    return Row((quantity_label(quantity), *amounts, signed_percent(before.error), signed_percent(now.error)))


def _interval_notes(before: RowScore, now: RowScore) -> tuple[Note, ...]:
    """A line for each quantity whose interval is another one than it was."""
    found = []
    for name in QUANTITIES:
        for old, new in zip(points_of((before,), name), points_of((now,), name), strict=False):
            texts = [_interval_text(each) for each in (old, new)]
            if texts[0] != texts[1]:
                of = f"{whole_percent(NOMINAL_COVERAGE)} interval of {quantity_label(new.quantity)}"
                found.append(Note(f"{of}: {texts[0] or 'none'} before, {texts[1] or 'none'} now."))
    return tuple(found)


def _interval_text(point: Point) -> str:
    """The ends of an interval in the unit of its quantity; empty without one."""
    interval = point.interval
    return (
        ""
        if interval is None
        else f"{amount(point.quantity, interval.low)} to {amount(point.quantity, interval.high)}"
    )


def _moved_row(moved: Moved, seen: Sequence[str]) -> Row:
    in_bytes = moved.prior.unit == "bytes"
    values = (format_bytes(each) if in_bytes else f"{each:.4g}" for each in (moved.before, moved.after))
    effects = (
        signed_percent(moved.effect[name]) if abs(moved.effect[name]) >= _SMALLEST_SHOWN else ""
        for name in seen
    )
    return Row((moved.prior.name, *values, *effects))


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
