"""The table of the matrix: one row a cell, in ``data/differential``."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.cells import Cell, all_cells
from matrix.compare import Planned, Traced, planned, worst_group, worst_phase
from planner.catalog.location import data_dir
from planner.words import words

COLUMNS = words(
    """
    widths model method checkpointing attention batch seq_tokens trace_bytes trace_phase
    trace_reserved_bytes trace_terms_bytes trace_phases_bytes
    """
)
MISSING_COLUMNS = ("widths", "model", "method", "checkpointing", "attention", "batch", "seq_tokens", "reason")
Key = tuple[str, ...]
Row = dict[str, str]
_KEY_COLUMNS = COLUMNS[:7]


def folder() -> Path:
    """Where the tables are."""
    return data_dir() / "differential"


@dataclass(frozen=True, slots=True)
class Tables:
    """Rows by the key of their cell: compared ones,
    and the reason of those that neither instrument can be asked for.
    """

    rows: dict[Key, Row]
    missing: dict[Key, str]


def row_of(cell: Cell, trace: Traced) -> Row:
    """The row of a cell that was traced."""
    amounts = (
        trace.allocated_bytes,
        trace.phase,
        trace.reserved_bytes,
        _packed(trace.terms),
        _packed(trace.phases),
    )
    return dict(zip(COLUMNS, (*cell.key, *map(str, amounts)), strict=True))


@dataclass(frozen=True, slots=True)
class Apart:
    """How far the step program is from the trace of one row, in percent of the trace.

    ``phase``: of the phase that differs most; ``terms``: of the group of terms that differs most in the phase
    of the trace's peak.  Both are in percent of the trace's peak; ``worst_phase`` and ``worst_terms`` are
    their names.
    """

    row: Row
    allocated: float
    reserved: float
    phase: float
    terms: float
    worst_phase: str
    worst_terms: str


def compared(rows: Mapping[Key, Row]) -> dict[Key, Apart]:
    """The step program as it is now beside the stored traces."""
    cells = {cell.key: cell for cell in all_cells()}
    return {
        key: _apart(row, planned(cells[key], row["trace_phase"]), trace_of(row)) for key, row in rows.items()
    }


def _apart(row: Row, plan: Planned, trace: Traced) -> Apart:
    whole = trace.allocated_bytes
    phase, of_phase = worst_phase(plan.phases, trace.phases, whole)
    group, of_group = worst_group(plan.terms, trace.terms, whole)
    allocated = 100 * (plan.allocated_bytes / whole - 1)
    reserved = 100 * (plan.reserved_bytes / trace.reserved_bytes - 1)
    return Apart(row, allocated, reserved, of_phase, of_group, phase, group)


def trace_of(row: Row) -> Traced:
    """What is stored of a trace."""
    return Traced(
        int(row["trace_bytes"]),
        int(row["trace_reserved_bytes"]),
        row["trace_phase"],
        _unpacked(row["trace_phases_bytes"]),
        _unpacked(row["trace_terms_bytes"]),
    )


def _packed(amounts: Mapping[str, int]) -> str:
    return ";".join(f"{name}={size}" for name, size in amounts.items())


def _unpacked(text: str) -> dict[str, int]:
    pairs = (item.partition("=") for item in text.split(";") if item)
    return {name: int(size) for name, _, size in pairs}


def read_tables(where: Path) -> Tables:
    """The stored tables; empty ones where there are none."""
    rows = {tuple(row[name] for name in _KEY_COLUMNS): row for row in _read(where / "matrix.csv")}
    missing = {
        tuple(row[name] for name in _KEY_COLUMNS): row["reason"] for row in _read(where / "not_compared.csv")
    }
    return Tables(rows, missing)


def joined(tables: Tables, more: Tables) -> Tables:
    """``tables`` with the cells of ``more``, which are newer; a cell stands in one table only."""
    fresh = {*more.rows, *more.missing}
    rows = {key: row for key, row in tables.rows.items() if key not in fresh} | more.rows
    missing = {key: reason for key, reason in tables.missing.items() if key not in fresh} | more.missing
    return Tables(rows, missing)


def _read(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write_tables(where: Path, tables: Tables, order: Sequence[Cell]) -> None:
    """Write both tables, rows in the order of the cells."""
    where.mkdir(parents=True, exist_ok=True)
    keys = [
        cell.key for cell in sorted(order, key=lambda cell: (cell.widths != "real", cell.model, cell.key))
    ]
    _write(where / "matrix.csv", COLUMNS, (tables.rows[key] for key in keys if key in tables.rows))
    missing = (
        dict(zip(MISSING_COLUMNS, (*key, tables.missing[key]), strict=True))
        for key in keys
        if key in tables.missing
    )
    _write(where / "not_compared.csv", MISSING_COLUMNS, missing)


def _write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    partial = path.with_suffix(".partial")
    partial.write_text(text.getvalue(), encoding="utf-8")
    partial.replace(path)


def summary_line(percentages: Iterable[float]) -> str:
    """Mean, median, nine of ten and worst size of some percentages."""
    sizes = sorted(map(abs, percentages))
    if not sizes:
        return "no rows"
    tenth = sizes[9 * len(sizes) // 10]
    mean, median = statistics.fmean(sizes), statistics.median(sizes)
    return f"mean {mean:.2f} %, median {median:.2f} %, 90 % {tenth:.2f} %, worst {sizes[-1]:.2f} %"


def summary_table(some: Iterable[Apart]) -> str:
    """The comparison in a few lines of markdown: one line for each widths,
    method and kind of checkpointing.
    """
    groups: dict[tuple[str, str, str], list[Apart]] = {}
    for each in some:
        kept = "checkpointing" if each.row["checkpointing"] == "true" else "all kept"
        for key in ((each.row["widths"], each.row["method"], kept), (each.row["widths"], "all", "")):
            groups.setdefault(key, []).append(each)
    lines = [
        "| widths | method | activations | cells | allocated peak | reserved peak |",
        "|---|---|---|--:|--:|--:|",
    ]
    for key, apart in sorted(groups.items(), key=lambda group: (group[0][0], group[0][1] == "all", group[0])):
        sizes = [
            summary_line(each.allocated for each in apart),
            summary_line(each.reserved for each in apart),
        ]
        lines.append(f"| {' | '.join((*key, str(len(apart)), *sizes))} |")
    return "\n".join(lines) + "\n"
