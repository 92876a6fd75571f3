"""When a run has measured enough steps."""

from __future__ import annotations

import pytest

from measure.run.cases.case import RunOptions
from measure.run.pace import Pace, interquartile_range, relative_spread


def test_the_pace_stops_when_times_settle() -> None:
    """Warm-up is not counted; steady times stop at the least number of steps,
    spread ones go on to the limit.
    """
    options = RunOptions(warmup=2, steps=5, max_steps=20, budget_s=100.0)
    steady, spread = Pace(options), Pace(options)
    for number in range(30):
        if not steady.enough:
            steady.add(9.0 if number < 2 else 1.0)
        if not spread.enough:
            spread.add(1.0 + number % 2)
    assert steady.counted_s == [1.0] * 5
    assert len(spread.counted_s) == 20


def test_the_pace_keeps_to_its_budget() -> None:
    """Times that spread stop at the budget, yet not before the least number of steps."""
    pace = Pace(RunOptions(warmup=0, steps=5, max_steps=100, budget_s=3.0))
    while not pace.enough:
        pace.add(1.0 + len(pace.durations_s) % 2)
    assert len(pace.counted_s) == 5


def test_spread_is_that_of_the_quartiles() -> None:
    """Hand-computed: quartiles of 1..5 are 2 and 4; three values give their range."""
    assert interquartile_range([1, 2, 3, 4, 5]) == 2
    assert relative_spread([1, 2, 3, 4, 5]) == pytest.approx(2 / 3)
    assert interquartile_range([1.0, 5.0, 2.0]) == 4.0
