"""The requests of the step program and of the trace, side by side:
``python tests/against_libraries/streams.py --help``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from matrix.cells import Cell, scenario_of

from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.report.trace.requests import Request, differences, ignored_sizes, of_program, of_trace

# The first micro-step, and one that finds what all later ones find.
FIRST = ("forward", "loss", "backward")
LATER = ("forward_2", "loss_2", "backward_2")


Phases = Sequence[str]
Sides = tuple[list[Request], list[Request]]


def both(scenario: Scenario, phases: Phases = LATER) -> Sides:
    """Requests of the program and of the trace in ``phases``."""
    return next(both_in(scenario, phases))


def both_in(scenario: Scenario, *parts: Phases) -> Iterator[Sides]:
    """The same for each of several ``parts`` of one step, which is traced once."""
    from measure.trace.traced_job import trace_events

    ignored, job, trace = ignored_sizes(scenario), job_of(scenario, Coefficients()), trace_events(scenario)
    return ((of_program(job, ignored, phases), of_trace(trace, ignored, phases)) for phases in parts)


def main() -> None:
    """Compare one cell of the matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("method", choices=("full", "lora", "qlora", "int8"))
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--widths", default="small", choices=("small", "real"))
    parser.add_argument("--phases", default=",".join(LATER), help="phases to compare, by commas")
    parser.add_argument("--most", type=int, default=60, help="lines of differences to print")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    job = (
        options.model,
        options.method,
        options.checkpointing,
        options.attention,
        options.batch,
        options.seq,
    )
    program, trace = both(scenario_of(Cell(0, options.widths, *job)), options.phases.split(","))
    said = differences(program, trace)[: options.most]
    sys.stdout.write(
        "\n".join([*said, f"{len(program)} requests of the program, {len(trace)} of the trace", ""])
    )


if __name__ == "__main__":
    main()
