"""What a calibration asks of a scenario."""

from __future__ import annotations

import pytest

from planner.domain.uncertainty.calibration import lengths_are_unknown, lengths_of
from tests.jobs import resolved

JOB = {"model": "7b", "method": "qlora", "gpu": "4090", "seq": 1024}


@pytest.mark.parametrize(
    ("said", "lengths", "are_unknown"),
    [
        ({"padding": "longest", "tokens_per_sample": 300}, "natural", False),
        ({"padding": "longest"}, "natural", True),
        ({}, "fixed", False),
        ({"padding": "max_length", "tokens_per_sample": 300}, "fixed", False),
        ({"padding": "packed"}, "fixed", False),
    ],
)
def test_shapes_change_only_where_samples_are_padded_to_the_longest(
    said: dict[str, object], lengths: str, are_unknown: bool
) -> None:
    """And only where they are shorter than the cap, or where nobody said how long they are."""
    scenario = resolved({**JOB, **said})
    assert (lengths_of(scenario), lengths_are_unknown(scenario)) == (lengths, are_unknown)
