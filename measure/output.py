"""The one place where ``measure`` writes: results to standard output, remarks to standard error,
both without control characters.

Titles, model names, reasons of libraries and names of cards come from outside and must not steer the
terminal.
"""

from __future__ import annotations

import sys

from planner.printing import printable, printable_lines


def write_result(text: str) -> None:
    """``text``, which may have many lines, on standard output."""
    sys.stdout.write(printable_lines(text))


def write_foreign(line: str) -> None:
    """A line that a user's program wrote, on standard error as it is: the program is the user's own."""
    sys.stderr.write(line)
    sys.stderr.flush()


def write_remark(text: str) -> None:
    """``measure: text`` on standard error, in one line."""
    sys.stderr.write(f"measure: {printable(text)}\n")
    sys.stderr.flush()
