"""``make explore`` counts what it tries, and what fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from explore import counted, run_round

_CONFTEST = """
from hypothesis import settings
settings.register_profile("explore", max_examples=7, database=None, phases=["generate"])
"""
_TESTS = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_holds(number):
    pass

@given(st.integers())
def test_breaks(number):
    assert False
"""


@pytest.mark.parametrize(("until", "inputs", "failures"), [("later", 8, 1), ("before", 0, 0)])
def test_inputs_and_failures_are_counted_until_the_time_is_over(
    tmp_path: Path, until: str, inputs: int, failures: int
) -> None:
    """Seven inputs of what holds and one of what breaks at once; none once the time is over."""
    tests, counts = tmp_path / "tests", tmp_path / "counts"
    tests.mkdir()
    counts.mkdir()
    (tests / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
    (tests / "test_it.py").write_text(_TESTS, encoding="utf-8")
    end = time.time() + (600 if until == "later" else -1)
    code = run_round([str(tests)], 1, {"EXPLORE_FOLDER": str(counts), "EXPLORE_UNTIL": str(end)})
    assert code == (1 if failures else 0)
    tried, broken = counted(counts)
    # What fails is tried again for its report.
    assert inputs <= tried <= 3 * inputs
    assert [name.rpartition("::")[2] for name in broken.elements()] == ["test_breaks"] * failures
