"""Quantiles of scores, and the intervals that follow from them, on a distribution of three numbers."""

from __future__ import annotations

import math

import pytest

from planner.domain.uncertainty.interval import (
    WIDEST_LOG,
    Interval,
    Spread,
    SpreadKey,
    find_spread,
    interval_around,
    log_range,
)

# Half of the measurements score below 0.5, one in twenty below -2, and one in twenty above 4.
SPREAD = Spread(SpreadKey("time"), (0.05, 0.5, 0.95), (-2.0, 0.5, 4.0), 30, 6)


def scored(*scores: float) -> Spread:
    """A distribution with these scores at its ends and its middle."""
    return Spread(SpreadKey("time"), (0.05, 0.5, 0.95), scores, 30, 6)


@pytest.mark.parametrize(
    ("probability", "score"),
    [(0.0, -2.0), (0.05, -2.0), (0.275, -0.75), (0.5, 0.5), (0.725, 2.25), (1.0, 4.0)],
)
def test_quantiles_are_linear_between_those_that_are_stored(probability: float, score: float) -> None:
    """0.275 and 0.725 lie half-way; beyond the ends nothing is guessed."""
    assert SPREAD.quantile(probability) == pytest.approx(score)


@pytest.mark.parametrize(
    ("score", "share"), [(-2.001, 0.0), (-2.0, 0.05), (-0.75, 0.275), (0.5, 0.5), (3.999, 0.95), (4.0, 1.0)]
)
def test_shares_below_a_score_are_the_way_back(score: float, share: float) -> None:
    """Below the lowest score there is nothing, and from the highest on there is everything."""
    assert SPREAD.share_below(score) == pytest.approx(share, abs=2e-4)


def test_a_score_that_several_measurements_have_counts_all_of_them() -> None:
    """Four in ten score 0 exactly: so six in ten are at most 0."""
    spread = Spread(SpreadKey("need"), (0.1, 0.2, 0.6, 0.9), (-1.0, 0.0, 0.0, 1.0), 10, 3)
    assert spread.share_below(0.0) == pytest.approx(0.6)


def test_nine_in_ten_measurements_lie_in_the_interval() -> None:
    """Half the scale halves the logarithms: from 1 / e of what was predicted to e squared of it."""
    assert log_range(SPREAD, 0.5) == pytest.approx((-1.0, 2.0))
    assert log_range(SPREAD, 0.5, 0.25) == pytest.approx((-0.5, 2.0))
    found = interval_around(SPREAD, 10.0, 0.5)
    assert (found.low, found.high) == pytest.approx((10 / math.e, 10 * math.e**2))
    assert interval_around(SPREAD, 0.0, 0.5) == Interval(0.0, 0.0)


@pytest.mark.parametrize(
    ("scores", "expected"), [((1.0, 2.0, 3.0), (0.0, 3.0)), ((-3.0, -2.0, -1.0), (-3.0, 0.0))]
)
def test_the_prediction_itself_is_inside(scores: tuple[float, ...], expected: tuple[float, float]) -> None:
    """Also where all that was measured lay on one side of it."""
    assert log_range(scored(*scores), 1.0) == pytest.approx(expected)


def test_an_interval_without_bounds_ends_at_a_billion_times() -> None:
    """An exponential of more would overflow."""
    assert log_range(SPREAD, 1e6) == (-WIDEST_LOG, WIDEST_LOG)
    assert interval_around(SPREAD, 1.0, 1e300).high == pytest.approx(1e9)


def test_the_classes_of_a_reading() -> None:
    """What is allocated has one class for all lengths; the levels above it have one for each."""
    coarse = SpreadKey("memory")
    allocated = SpreadKey.memory("allocated", "natural")
    assert allocated.path() == (coarse, SpreadKey("memory", "", "allocated"))
    for level in ("reserved", "driver"):
        assert SpreadKey.memory(level, "natural").path() == (coarse, SpreadKey("memory", "natural"))
    assert SpreadKey("host_memory").path() == (SpreadKey("host_memory"),)


def test_the_finest_class_that_there_is_answers() -> None:
    """Without one of its own a reading has that of its kind, and never that of another kind."""
    coarse, fine = SpreadKey("memory"), SpreadKey("memory", "natural")
    both = {coarse: scored(-1, 0, 1), fine: scored(-5, 0, 5)}
    assert find_spread(both, fine) is both[fine]
    assert find_spread(both, SpreadKey("memory", "fixed")) is both[coarse]
    assert find_spread(both, SpreadKey("time", "natural")) is None
