"""The table of the matrix: one row a cell, in ``data/differential``."""

from __future__ import annotations

import csv
import io
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.cells import Cell, all_cells, has_windows
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
    "trace_bytes",
    "trace_phase",
    "trace_reserved_bytes",
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
    """The row of a cell that was traced."""
    amounts = (trace.allocated_bytes, trace.phase, trace.reserved_bytes, _packed(trace.terms), _packed(trace.phases))
    return dict(zip(COLUMNS, (*cell.key, *map(str, amounts)), strict=True))


@dataclass(frozen=True, slots=True)
class Apart:
    """How far the closed form is from the trace of one row, in percent of the trace.

    ``terms``: of the group of terms that differs most in the phase of the trace's peak; ``worst_terms`` is its name.
    """

    row: Row
    allocated: float
    terms: float
    reserved: float
    worst_terms: str


def compared(rows: Mapping[Key, Row]) -> dict[Key, Apart]:
    """The closed form as it is now beside the stored traces."""
    cells = {cell.key: cell for cell in all_cells()}
    groups: dict[Key, list[Key]] = {}
    for key in rows:
        # A window is reached by a whole array of lengths or by none of it.
        groups.setdefault(key if has_windows(cells[key]) else key[:-1], []).append(key)
    found: dict[Key, Apart] = {}
    for keys in groups.values():
        traces = [trace_of(rows[key]) for key in keys]
        plans = planned([cells[key] for key in keys], [trace.phase for trace in traces])
        found |= {key: _apart(rows[key], plan, trace) for key, plan, trace in zip(keys, plans, traces, strict=True)}
    return found


def _apart(row: Row, plan: Planned, trace: Traced) -> Apart:
    group, percent = worst_group(plan.terms, trace.terms, trace.allocated_bytes)
    allocated = 100 * (plan.allocated_bytes / trace.allocated_bytes - 1)
    return Apart(row, allocated, percent, 100 * (plan.reserved_bytes / trace.reserved_bytes - 1), group)


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


def summary_line(percentages: Iterable[float]) -> str:
    """Median and worst size of some percentages."""
    sizes = sorted(map(abs, percentages))
    return f"median {statistics.median(sizes):.2f} %, worst {sizes[-1]:.2f} %" if sizes else "no rows"


def summary_table() -> str:
    """The comparison in a few lines of markdown: one line a method and kind of checkpointing."""
    everything = list(compared(read_tables(folder()).rows).values())
    groups: dict[tuple[str, str], list[Apart]] = {}
    for each in everything:
        kept = "checkpointing" if each.row["checkpointing"] == "true" else "all kept"
        groups.setdefault((each.row["method"], kept), []).append(each)
    lines = [
        "| method | activations | cells | allocated peak | within 2 % | terms, of the peak | reserved peak |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for (method, kept), some in (*sorted(groups.items()), (("all", ""), everything)):
        close = sum(abs(round(each.allocated, 2)) <= 2 for each in some) / len(some)
        cells = " | ".join(
            (
                summary_line(each.allocated for each in some),
                f"{100 * close:.0f} %",
                summary_line(each.terms for each in some),
                summary_line(each.reserved for each in some),
            )
        )
        lines.append(f"| {method} | {kept} | {len(some)} | {cells} |")
    return "\n".join(lines) + "\n"
