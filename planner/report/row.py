"""One measured row walked through: what was read, what was predicted, what is known of the difference."""

from __future__ import annotations

from planner.calibration.misses import stored_misses
from planner.calibration.rows import Comparison, RowScore
from planner.report.layout import Column, Grid, Note, Row, Section
from planner.report.validation_text import amount, quantity_label, recipe_label, signed_percent

_QUANTITIES = ("memory", "throughput", "host_memory")
_COLUMNS = (
    Column("quantity"),
    Column("measured", "right"),
    Column("predicted", "right"),
    Column("error", "right"),
    Column("note"),
)


def row_sections(row: RowScore, place: str, calibration: str) -> tuple[Section, ...]:
    """Where the row stands, what its source says, and measured against predicted with the mechanism of a large error.

    The terms, coefficients and settings behind the prediction are the report of ``plan --explain``, which follows it.
    """
    record = row.record
    head = Section(
        f"Row {record.id}",
        (
            Note(
                f"{recipe_label(row)}; {record.source}, {record.locator or 'no locator'}, grade {record.grade or 'unknown'}",
                "strong",
            ),
            Note(f"Read at {place}; predicted with calibration {calibration}."),
            *((Note(f"Notes of the record: {record.notes}", "dim"),) if record.notes else ()),
        ),
    )
    comparisons = [(name, getattr(row, name)) for name in _QUANTITIES if getattr(row, name) is not None]
    if not comparisons:
        return (head, Section("", (Note(f"Nothing was compared: the run ended as {record.outcome}.", "warn"),)))
    grid = Grid(_COLUMNS, tuple(_row(comparison) for _, comparison in comparisons))
    known = tuple(Note(text) for name, _ in comparisons if (text := _mechanism(record.id, name)))
    return (head, Section("Measured against predicted", (grid, *known)))


def _row(comparison: Comparison) -> Row:
    quantity = comparison.quantity
    return Row(
        (
            quantity_label(quantity),
            amount(quantity, comparison.measured),
            amount(quantity, comparison.predicted),
            signed_percent(comparison.error),
            comparison.note,
        )
    )


def _mechanism(row_id: str, quantity: str) -> str:
    """What ``data/published/misses.toml`` says of this row; empty where it is not listed."""
    for group in stored_misses().get(quantity, ()):
        if row_id in group.rows:
            evidence = "unexplained" if group.evidence == "none" else group.evidence
            return f"{quantity.replace('_', ' ')}, mechanism {evidence}: {group.mechanism}"
    return ""
