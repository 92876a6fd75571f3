"""The stored tables of programs that were dry-run: each has an answer,
and those that the trace knows have the same.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from planner.units import GIB
from tests.against_libraries.programs.again import columns_of
from tests.against_libraries.programs.sample import N_FILES, SECOND, refused
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


def test_cards_that_reserve_most_are_told_in_any_unit() -> None:
    """A report says what other cards take in the unit that is readable: 558 MiB are less than 5 GiB."""
    others = [
        {"name": f"cuda:{number}", "value": f"1.00 GiB allocated, {size} reserved at most", "note": "cuda:0"}
        for number, size in ((1, "5.00 GiB"), (2, "558.0 MiB"))
    ]
    peaks = {"allocated_peak_bytes": 4 * GIB, "reserved_peak_bytes": 5 * GIB}
    assert columns_of({**peaks, "assumptions": others})["cards"] == "0;1"


def test_files_of_the_samples_have_an_answer_or_a_reason() -> None:
    """Each file once; peaks where its exit code is that of an answer."""
    rows = [row for path in (SAMPLE, SECOND) for row in _rows(path)]
    assert len({row["file"] for row in rows}) == len(rows)
    for row in rows:
        answered = row["exit_code"] in ("0", "3")
        assert bool(row["allocated_bytes"] and row["reserved_bytes"]) is answered, row["file"]
        assert answered or row["says"], row["file"]


def test_the_page_names_the_files_of_the_sample_that_differ() -> None:
    """Beyond 3 % in what is allocated or reserved; at least four of five files are answered."""
    page = (SAMPLE.parents[3] / "docs" / "dry_run_compared.md").read_text(encoding="utf-8")
    rows = [row for path in (SAMPLE, SECOND) for row in _rows(path) if not refused(row)]
    answered = [row for row in rows if row["allocated_bytes"]]
    assert len([row for row in _rows(SAMPLE) if not refused(row)]) == 3 * N_FILES
    assert len(answered) >= 0.8 * len(rows)
    assert f"Of {len(rows)} that the tools accept, {len(answered)} are answered" in page
    for row in answered:
        apart = max(
            abs(int(row[f"plan_{each}"]) / int(row[each]) - 1)
            for each in ("allocated_bytes", "reserved_bytes")
        )
        assert apart <= 0.03 or "/".join(Path(row["file"]).parts[-2:]) in page, row["file"]
