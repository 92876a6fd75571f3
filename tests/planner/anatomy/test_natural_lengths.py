"""How far the laws of natural lengths agree: bytes, seconds, and the samples that a run is fed with."""

from __future__ import annotations

import statistics

import pytest

from measure.run.lengths import plan_batches
from planner.anatomy.natural_lengths import (
    cut_law,
    expected_longest,
    lengths_vary,
    mean_tokens,
    unlike_samples,
)
from planner.domain.coefficients import Coefficients
from planner.domain.recipe import Batch

CAP = 2048
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
# Longest of so many samples over the cap, by the law of bytes less by the law of seconds, at each of SHARES.
BYTES_LESS_SECONDS = {
    1: (0.000, 0.000, 0.000, 0.000, 0.000),
    2: (0.000, -0.001, 0.000, 0.041, 0.031),
    4: (0.000, -0.003, 0.024, 0.055, 0.026),
    8: (0.000, -0.009, 0.049, 0.039, 0.013),
    16: (0.000, -0.023, 0.046, 0.020, 0.007),
    64: (-0.001, -0.050, 0.015, 0.005, 0.002),
}
# The same by the law of seconds less by the samples of a run without a table of lengths,
# which lie evenly around their mean.
SECONDS_LESS_RUN = {
    2: (0.007, 0.017, 0.000, 0.024, 0.014),
    8: (0.059, 0.149, 0.000, 0.016, 0.008),
}
VARIATION = Coefficients().length_variation


def batch_of(share: float, draws: int) -> Batch:
    """Samples whose mean is this share of the cap."""
    return Batch(draws, 1, CAP, "longest", share * CAP)


def longest_by_bytes(batch: Batch) -> float:
    """Mean of the law's quantiles."""
    law = cut_law(batch, VARIATION, drops_long=False, sorts_lengths=False)
    return statistics.fmean(float(law.length((place + 0.5) / 4000)) for place in range(4000))


def longest_by_seconds(batch: Batch) -> float:
    """Closed form, over the cap."""
    return float(expected_longest(batch.tokens_per_sample, CAP, batch.micro_batch, VARIATION)) / CAP


@pytest.mark.parametrize("draws", BYTES_LESS_SECONDS)
def test_bytes_and_seconds_agree_this_far(draws: int) -> None:
    """Exactly for one draw; else the difference is a known number, at most 6 % of the cap."""
    batches = [batch_of(share, draws) for share in SHARES]
    differences = [longest_by_bytes(batch) - longest_by_seconds(batch) for batch in batches]
    assert differences == pytest.approx(BYTES_LESS_SECONDS[draws], abs=0.002)


@pytest.mark.parametrize("draws", SECONDS_LESS_RUN)
def test_a_run_without_a_table_of_lengths_is_fed_with_shorter_ones(draws: int) -> None:
    """A run draws evenly around the mean: its longest is never above what is predicted,
    and up to 15 % of the cap below.
    """
    for share, expected in zip(SHARES, SECONDS_LESS_RUN[draws], strict=True):
        batch = batch_of(share, draws)
        # The first two batches of a plan are chosen for their width.
        drawn = [each.width_tokens for seed in range(60) for each in plan_batches(batch, (), seed)[2:]]
        assert longest_by_seconds(batch) - statistics.fmean(drawn) / CAP == pytest.approx(expected, abs=0.012)


def test_where_long_samples_are_left_out_the_mean_stays() -> None:
    """Cut or left out, one sample has the mean that was said."""
    for share in (0.1, 0.25, 0.5):
        law = cut_law(batch_of(share, 1), VARIATION, drops_long=True, sorts_lengths=False)
        mean = statistics.fmean(float(law.length((place + 0.5) / 4000)) for place in range(4000))
        assert mean == pytest.approx(share, abs=0.001)


def test_what_both_laws_are_asked_about() -> None:
    """Lengths vary under padding to the longest alone; sorted samples are alike; no mean is above the cap."""
    batch = batch_of(0.5, 4)
    assert lengths_vary(batch)
    assert not lengths_vary(Batch(4, 1, CAP, "max_length", 100))
    assert not lengths_vary(batch_of(1.0, 4))
    assert [unlike_samples(batch, sorts_lengths=sorts) for sorts in (True, False)] == [1, 4]
    assert mean_tokens(Batch(4, 1, CAP, "longest", 2 * CAP)) == CAP
