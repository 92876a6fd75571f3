"""The table of sharded jobs: the program as it is now stays within the limit of the stored dry runs."""

from __future__ import annotations

import statistics

import pytest
from sharded_table import JOBS, Apart, compared, key_of, read

WORST_PERCENT, MEDIAN_PERCENT, RESERVED_PERCENT = 5.0, 1.0, 4.0
ROWS = {key_of(row): row for row in read()}


@pytest.fixture(scope="module")
def apart() -> dict[tuple[str, ...], Apart]:
    """How far each stored row is from the program as it is now."""
    return {key: compared(row) for key, row in ROWS.items()}


def test_every_job_was_traced() -> None:
    """No job of the list is missing, none is left over, and all kinds of sharding are among them."""
    assert set(ROWS) == {key_of(job) for job in JOBS}
    assert {job["sharding"] for job in JOBS} == {"ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp1"}


@pytest.mark.parametrize("key", ROWS, ids="-".join)
def test_every_peak_is_within_the_limit_or_has_a_mechanism(
    key: tuple[str, ...], apart: dict[tuple[str, ...], Apart]
) -> None:
    """A job that is further off than five percent says why; one that is not says nothing."""
    assert (abs(apart[key].allocated) > WORST_PERCENT) == bool(ROWS[key]["mechanism"])


def test_what_is_reserved_is_within_the_limit(apart: dict[tuple[str, ...], Apart]) -> None:
    """Every job, over its load and both steps."""
    too_far = {key: each.reserved for key, each in apart.items() if abs(each.reserved) > RESERVED_PERCENT}
    assert not too_far


def test_the_median_is_within_the_limit(apart: dict[tuple[str, ...], Apart]) -> None:
    """Half of the jobs are closer than one percent."""
    assert statistics.median(abs(each.allocated) for each in apart.values()) <= MEDIAN_PERCENT
