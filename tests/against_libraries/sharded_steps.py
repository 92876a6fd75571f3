"""The jobs of ``sharded_table.py`` by the trace on fake tensors, where engines are run over its records,
and by the dry run of ``programs/sharded_trainer.py``, where the engines' own code runs.

``python -m tests.against_libraries.sharded_steps [WORD ...]`` runs what ``programs/sharded_steps.csv``
lacks, or the jobs that have all the words, and writes the table anew.
"""

from __future__ import annotations

import csv
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from drawn_jobs import of_steps, peaks
from sharded_table import JOBS, KEY, dry_run_of, key_of, scenario_of

from planner.allocator.events import AllocEvent, read_jsonl
from planner.allocator.replay import replay
from planner.errors import NotModelledError

TABLE = HERE / "programs" / "sharded_steps.csv"
SIDES = ("trace", "dry")
# ``whole``: with what loading leaves in the cache, which each side does in a way of its own.
PEAKS = ("allocated_bytes", "reserved_bytes", "whole_reserved_bytes")
COLUMNS = (
    *KEY,
    *(f"{side}_{peak}" for peak in PEAKS for side in SIDES),
    "refused",
)


def traced(row: Mapping[str, str]) -> list[AllocEvent]:
    """What the trace says.

    Raises:
        NotModelledError: the engine is not traced; says which.
    """
    from measure.trace.traced_job import trace_events

    return trace_events(scenario_of(row))


def dry(row: Mapping[str, str]) -> list[AllocEvent]:
    """What the program says, on the first card."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "events.jsonl"
        dry_run_of(row, "--events", str(file))
        return read_jsonl(file)


def columns_of(side: str, events: list[AllocEvent]) -> dict[str, str]:
    """Peaks of the steps alone, in an allocator that has nothing else, and of everything."""
    allocated, reserved = peaks(of_steps(events))
    whole = max(each.reserved_bytes for each in replay(events).phases)
    return {
        f"{side}_allocated_bytes": str(allocated),
        f"{side}_reserved_bytes": str(reserved),
        f"{side}_whole_reserved_bytes": str(whole),
    }


def row_of(job: Mapping[str, str]) -> dict[str, str]:
    """The job through both, or why it is not traced."""
    row = dict.fromkeys(COLUMNS, "") | {name: job[name] for name in KEY}
    try:
        trace = columns_of("trace", traced(job))
    except NotModelledError as error:
        return row | {"refused": str(error)}
    return row | trace | columns_of("dry", dry(job))


def read() -> list[dict[str, str]]:
    """The stored rows."""
    if not TABLE.is_file():
        return []
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main(words: Sequence[str]) -> None:
    """Run, and write after each."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows = {key_of(row): row for row in read()}
    for job in JOBS:
        key = key_of(job)
        if not set(words) <= set(key) if words else key in rows:
            continue
        rows[key] = row_of(job)
        sys.stdout.write(" ".join(rows[key].values()) + "\n")
        sys.stdout.flush()
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[each] for each in map(key_of, JOBS) if each in rows)


if __name__ == "__main__":
    main(sys.argv[1:])
