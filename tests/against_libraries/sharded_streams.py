"""The requests of the step program and of the trace of sharded jobs, side by side.

``python tests/against_libraries/sharded_streams.py [--phases NAMES] [WORD ...]`` takes the rows of
``data/differential/sharded.csv`` that have all the words among their values, and traces each of them.
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

from sharded_table import compared, key_of, read, scenario_of
from streams import both

from planner.report.trace.requests import differences

PHASES = ("forward", "loss", "backward", "optimizer_step", "forward_2", "loss_2", "backward_2")


def lines(words: Sequence[str], phases: Sequence[str], most: int) -> Iterator[str]:
    """Of each row with these ``words``: how far both are apart, and the first ``most`` lines of requests that
    differ in ``phases``; none with ``most`` 0, which traces nothing.
    """
    for row in read():
        if not set(words) <= set(key_of(row)):
            continue
        yield f"{' '.join(key_of(row))}: {compared(row)}"
        if most:
            yield from differences(*both(scenario_of(row), phases))[:most]


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--phases", default=",".join(PHASES), help="phases to compare, by commas")
    parser.add_argument(
        "--most", type=int, default=60, help="lines of differing requests to print; 0: do not trace"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    for line in lines(options.words, options.phases.split(","), options.most):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
