"""The table of the matrix: one row a cell, in ``data/differential``."""

from __future__ import annotations

import csv
import io
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.cells import Cell
from matrix.compare import Planned, Traced, planned, worst_group
from planner.catalog.location import data_dir

COLUMNS = (
    "widths",
    "model",
    "method",
    "checkpointing",
    "attention",
    "batch",
    "seq_tokens",
    "closed_form_bytes",
    "trace_bytes",
    "difference_percent",
    "limiting_phase",
    "trace_phase",
    "worst_terms",
    "worst_terms_percent",
    "closed_form_reserved_bytes",
    "trace_reserved_bytes",
    "reserved_difference_percent",
    "trace_terms_bytes",
    "trace_phases_bytes",
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
    """Rows by the key of their cell: compared ones, and the reason of those that neither instrument can be asked for."""

    rows: dict[Key, Row]
    missing: dict[Key, str]


def row_of(cell: Cell, trace: Traced) -> Row:
    """The row of a cell that was traced; the closed form is asked now."""
    plan = planned(cell, trace.phase)
    return dict(zip(COLUMNS, (*cell.key, *_values(plan, trace)), strict=True))


def refreshed(cell: Cell, row: Row) -> Row:
    """``row`` with the closed form as it is now beside the stored trace."""
    return row_of(cell, trace_of(row))


def trace_of(row: Row) -> Traced:
    """The trace's half of a row."""
    return Traced(
        int(row["trace_bytes"]),
        int(row["trace_reserved_bytes"]),
        row["trace_phase"],
        _unpacked(row["trace_phases_bytes"]),
        _unpacked(row["trace_terms_bytes"]),
    )


def _values(plan: Planned, trace: Traced) -> tuple[str, ...]:
    group, percent = worst_group(plan.terms, trace.terms, trace.allocated_bytes)
    return (
        str(plan.allocated_bytes),
        str(trace.allocated_bytes),
        _percent(plan.allocated_bytes, trace.allocated_bytes),
        plan.phase,
        trace.phase,
        group,
        f"{percent:.2f}",
        str(plan.reserved_bytes),
        str(trace.reserved_bytes),
        _percent(plan.reserved_bytes, trace.reserved_bytes),
        _packed(trace.terms),
        _packed(trace.phases),
    )


def _percent(plan_bytes: int, trace_bytes: int) -> str:
    return f"{100 * (plan_bytes - trace_bytes) / trace_bytes:.2f}"


def _packed(amounts: Mapping[str, int]) -> str:
    return ";".join(f"{name}={size}" for name, size in amounts.items())


def _unpacked(text: str) -> dict[str, int]:
    pairs = (item.partition("=") for item in text.split(";") if item)
    return {name: int(size) for name, _, size in pairs}


def read_tables(where: Path) -> Tables:
    """The stored tables; empty ones where there are none."""
    rows = {tuple(row[name] for name in _KEY_COLUMNS): row for row in _read(where / "matrix.csv")}
    missing = {tuple(row[name] for name in _KEY_COLUMNS): row["reason"] for row in _read(where / "not_compared.csv")}
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
    keys = [cell.key for cell in sorted(order, key=lambda cell: (cell.widths != "real", cell.model, cell.key))]
    _write(where / "matrix.csv", COLUMNS, (tables.rows[key] for key in keys if key in tables.rows))
    missing = (dict(zip(MISSING_COLUMNS, (*key, tables.missing[key]), strict=True)) for key in keys if key in tables.missing)
    _write(where / "not_compared.csv", MISSING_COLUMNS, missing)


def _write(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    partial = path.with_suffix(".partial")
    partial.write_text(text.getvalue(), encoding="utf-8")
    partial.replace(path)


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows that are further off than the limit, by the values of some columns, and why."""

    match: Mapping[str, str]
    mechanism: str

    def covers(self, row: Row) -> bool:
        """Whether ``row`` is one of them."""
        return all(row[name] == value for name, value in self.match.items())


def exceptions() -> list[Difference]:
    """``data/differential/exceptions.toml``: differences that are understood and not modelled."""
    entries = tomllib.loads((folder() / "exceptions.toml").read_text(encoding="utf-8")).get("exception", [])
    return [Difference(entry["match"], entry["mechanism"]) for entry in entries]


def summary_line(rows: Sequence[Row], column: str) -> str:
    """Median and worst size of a percentage over ``rows``."""
    sizes = sorted(abs(float(row[column])) for row in rows)
    return f"median {statistics.median(sizes):.2f} %, worst {sizes[-1]:.2f} %" if sizes else "no rows"


def summary_table() -> str:
    """The stored table in a few lines of markdown: one line a method and kind of checkpointing."""
    stored = read_tables(folder())
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in stored.rows.values():
        kept = "checkpointing" if row["checkpointing"] == "true" else "all kept"
        groups.setdefault((row["method"], kept), []).append(row)
    lines = [
        "| method | activations | cells | allocated peak | within 2 % | terms, of the peak | reserved peak |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for (method, kept), rows in (*sorted(groups.items()), (("all", ""), list(stored.rows.values()))):
        close = sum(abs(float(row["difference_percent"])) <= 2 for row in rows) / len(rows)
        cells = " | ".join(
            (
                summary_line(rows, "difference_percent"),
                f"{100 * close:.0f} %",
                summary_line(rows, "worst_terms_percent"),
                summary_line(rows, "reserved_difference_percent"),
            )
        )
        lines.append(f"| {method} | {kept} | {len(rows)} | {cells} |")
    return "\n".join(lines) + "\n"
