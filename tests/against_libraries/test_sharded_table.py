"""The table of sharded jobs: the program as it is now stays within the limit of the stored traces."""

from __future__ import annotations

import statistics

import pytest
from sharded_table import JOBS, Apart, compared, key_of, read

WORST_PERCENT, MEDIAN_PERCENT = 5.0, 1.0
ROWS = {key_of(row): compared(row) for row in read()}


def test_every_job_was_traced() -> None:
    """No job of the list is missing, none is left over, and all kinds of sharding are among them."""
    assert set(ROWS) == {key_of(job) for job in JOBS}
    assert {job["sharding"] for job in JOBS} == {"ddp", "zero1", "zero2", "zero3", "fsdp"}


@pytest.mark.parametrize("apart", ROWS.values(), ids=lambda apart: "-".join(key_of(apart.row)))
def test_every_peak_is_within_the_limit_or_has_a_mechanism(apart: Apart) -> None:
    """A job that is further off than five percent says why; one that is not says nothing."""
    assert (abs(apart.allocated) > WORST_PERCENT) == bool(apart.row["mechanism"])


def test_the_median_is_within_the_limit() -> None:
    """Half of the jobs are closer than one percent."""
    assert statistics.median(abs(each.allocated) for each in ROWS.values()) <= MEDIAN_PERCENT
