"""Sharded jobs of ``data/differential/sharded.csv``: the step program beside the trace, phase by phase.

``python sharded_streams.py [--requests] [WORD ...]`` takes the rows that have all the words among their
values.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from sharded_table import Row, key_of, read, scenario_of
from streams import Request, differences, requests

from planner.allocator.events import AllocEvent
from planner.allocator.replay import replay
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.program.ops.sizes import unit_values
from planner.program.step import step_of


def program_events(row: Row) -> tuple[list[AllocEvent], float]:
    """The stream of the program, and the seconds that it took to make."""
    job = job_of(scenario_of(row), Coefficients())
    started = time.perf_counter()
    stream = step_of(job)
    seconds = time.perf_counter() - started
    values, begins = unit_values(job), dict(stream.phases)
    events, phase = [], ""
    for index, event in enumerate(stream.events):
        phase = begins.get(index, phase)
        slot = event if event >= 0 else ~event
        n_bytes = round(float(stream.unit_bytes[slot] * values[stream.units[slot]]))
        label, module, op = stream.place(slot)
        kind = "alloc" if event >= 0 else "free"
        events.append(
            AllocEvent(kind, slot, n_bytes, stream.streams[slot], phase, "", op, f"{label} {module}")
        )  # type: ignore[arg-type]
    return events, seconds


def rows_of(events: list[AllocEvent], phases: list[str], least: int) -> list[Request]:
    """The requests of some phases, of at least so many bytes."""
    sizes: dict[int, int] = {}
    late: set[int] = set()
    rows = []
    for event in events:
        if event.action == "alloc":
            sizes[event.block] = event.n_bytes
        elif event.block in late:
            # The program let go of it before, where another stream still used it.
            continue
        elif event.action == "free_requested":
            late.add(event.block)
        if (
            event.phase in phases
            and sizes[event.block] >= least
            and "cublas" not in f"{event.module} {event.op}".lower()
        ):
            rows.append(
                (
                    event.action == "alloc",
                    sizes[event.block],
                    event.phase,
                    f"{event.module} {event.op} {event.stream}",
                )
            )
    return requests(rows, set())


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument(
        "--requests", type=int, default=0, help="lines of differing requests to print (runs the trace)"
    )
    parser.add_argument(
        "--phases", default="forward,loss,backward,optimizer_step,forward_2,loss_2,backward_2"
    )
    parser.add_argument("--least", type=int, default=1_000_000, help="leave out requests of fewer bytes")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for row in read():
        if not set(options.words) <= set(key_of(row)):
            continue
        events, seconds = program_events(row)
        result = replay(events)
        trace = dict(pair.split("=") for pair in row["trace_phases_bytes"].split(";"))
        said = [
            f"{each.phase} {100 * (each.allocated_bytes / int(trace[each.phase]) - 1):+.2f}"
            for each in result.phases
            if each.phase in trace
        ]
        reserved = 100 * (result.peak_reserved_bytes / int(row["trace_reserved_bytes"]) - 1)
        key = " ".join(key_of(row))
        print(f"{key} {1000 * seconds:.0f} ms reserved {reserved:+.2f} |", *said, flush=True)  # noqa: T201
        if options.requests:
            from measure.trace.program import trace_events

            phases = options.phases.split(",")
            sides = (
                rows_of(side, phases, options.least) for side in (events, trace_events(scenario_of(row)))
            )
            print("\n".join(differences(*sides, options.requests)))  # noqa: T201


if __name__ == "__main__":
    main()
