"""Runs the differential matrix and writes ``data/differential``:
``python tests/against_libraries/run_matrix.py --help``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from matrix.cells import Cell, all_cells, scenario_of
from matrix.compare import Traced, traced
from matrix.table import (
    Tables,
    compared,
    folder,
    joined,
    read_tables,
    row_of,
    summary_line,
    summary_table,
    write_tables,
)

from planner.errors import PlannerError

_SAVE_EVERY_S = 30.0


def _prepare() -> None:
    """One thread a worker: fakes compute nothing.
    Libraries warn about settings that they chose themselves.
    """
    warnings.simplefilter("ignore")
    import gc

    import torch

    # What tracing imports, before all that exists is left out of collections for good.
    import measure.trace.traced_job  # noqa: F401

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()


def run_one(cell: Cell) -> Traced | str:
    """The trace of a cell, or why there is none."""
    try:
        scenario_of(cell)
        return traced(cell)
    except PlannerError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - one broken cell must not end the run; it is listed
        return f"FAILED {type(error).__name__}: {' '.join(str(error).split())[:160]}"


def run_cells(cells: Sequence[Cell], tables: Tables, where: Path, workers: int) -> None:
    """Trace ``cells`` in a pool and store what comes, now and then and at the end."""
    order, saved = all_cells(), time.monotonic()
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_prepare)
    with pool:
        futures = {pool.submit(run_one, cell): cell for cell in cells}
        for count, future in enumerate(as_completed(futures), 1):
            cell, result = futures[future], future.result()
            tables.rows.pop(cell.key, None)
            tables.missing.pop(cell.key, None)
            if isinstance(result, str):
                tables.missing[cell.key] = result
            else:
                tables.rows[cell.key] = row_of(cell, result)
            if time.monotonic() - saved > _SAVE_EVERY_S:
                write_tables(where, tables, order)
                sys.stderr.write(f"{count} of {len(cells)}\n")
                saved = time.monotonic()
    write_tables(where, tables, order)


def main() -> None:
    """Trace what is missing, write both tables and say how far the step program is from the traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--again", action="store_true", help="trace every cell, not only those that are not stored yet"
    )
    parser.add_argument("--retry", action="store_true", help="trace again what could not be compared")
    parser.add_argument(
        "--compare-only", action="store_true", help="trace nothing; only say how far apart both are"
    )
    parser.add_argument(
        "--worst", type=int, default=10, help="cells to name that are furthest apart, by each measure"
    )
    parser.add_argument("--priority", type=int, default=9, help="leave out cells of a higher number")
    parser.add_argument("--match", default="", help="only cells whose key holds this text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=folder(), help="where the tables are")
    parser.add_argument(
        "--take", type=Path, help="add the cells of the tables in this folder, from a run elsewhere"
    )
    options = parser.parse_args()
    tables, cells = read_tables(options.folder), all_cells()
    if options.take:
        tables = joined(tables, read_tables(options.take))
    wanted = [
        cell for cell in cells if cell.priority <= options.priority and options.match in " ".join(cell.key)
    ]
    known = set() if options.again else {*tables.rows, *(() if options.retry else tables.missing)}
    if not options.compare_only:
        run_cells([cell for cell in wanted if cell.key not in known], tables, options.folder, options.workers)
    write_tables(options.folder, tables, cells)
    said = compared({key: row for key, row in tables.rows.items() if options.match in " ".join(key)}).values()
    if not options.match:
        (options.folder / "summary.md").write_text(summary_table(said), encoding="utf-8")
    sys.stdout.write(f"{len(said)} cells compared, {len(tables.missing)} not\n")
    for widths in ("real", "small"):
        some = [each for each in said if each.row["widths"] == widths]
        for name in ("allocated", "reserved", "phase", "terms"):
            sys.stdout.write(
                f"{widths} widths, {name}: {summary_line(getattr(each, name) for each in some)}\n"
            )
    for name in ("allocated", "reserved", "phase", "terms"):
        sys.stdout.write(f"furthest apart: {name}\n")
        for each in sorted(said, key=lambda each: -abs(getattr(each, name)))[: options.worst]:
            where = " ".join(
                (*tuple(each.row.values())[:7], each.row["trace_phase"], each.worst_phase, each.worst_terms)
            )
            sys.stdout.write(
                f"{each.allocated:.2f} {each.reserved:.2f} {each.phase:.2f} {each.terms:.2f} {where}\n"
            )


if __name__ == "__main__":
    main()
