"""The stored tables of programs that were dry-run: each has an answer,
and those that the trace knows have the same.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.against_libraries.programs.sample import PATH as SAMPLE
from tests.against_libraries.programs.table import PATH as PROGRAMS


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_program_has_an_answer() -> None:
    """And its allocated peak is the trace's where that knows the same job."""
    rows = _rows(PROGRAMS)
    assert len({row["program"] for row in rows}) == len(rows) >= 25
    for row in rows:
        assert row["says"] == "", row["program"]
        if row["trace_bytes"]:
            assert int(row["allocated_bytes"]) == pytest.approx(int(row["trace_bytes"]), rel=2e-3), row[
                "program"
            ]


def test_files_of_the_sample_have_an_answer_or_a_reason() -> None:
    """Each file once; peaks where its exit code is that of an answer."""
    rows = _rows(SAMPLE)
    assert len({row["file"] for row in rows}) == len(rows)
    for row in rows:
        answered = row["exit_code"] in ("0", "3")
        assert bool(row["allocated_bytes"] and row["reserved_bytes"]) is answered, row["file"]
        assert answered or row["says"], row["file"]
