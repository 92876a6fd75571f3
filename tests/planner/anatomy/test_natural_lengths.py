"""The law of natural lengths: its quantiles, its mean and spread, and the samples that a run is fed with."""

from __future__ import annotations

import statistics
from math import exp
from statistics import fmean

import numpy as np
import pytest

from measure.run.cases.lengths import mean_length, plan_batches
from planner.anatomy.natural_lengths import (
    cut_law,
    lengths_vary,
    longest_sample,
    mean_tokens,
    unlike_samples,
)
from planner.domain.recipes.recipe import Batch
from planner.domain.recipes.sample_lengths import Longest, SampleLengths
from planner.domain.uncertainty.coefficients import Coefficients

CAP = 2048
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
# Longest of so many samples over the cap, by the law less by the samples of a run without a table of
# lengths, which lie evenly around their mean; at each of SHARES.
LAW_LESS_RUN = {
    2: (0.007, 0.016, 0.001, 0.065, 0.045),
    8: (0.059, 0.138, 0.046, 0.053, 0.022),
}
VARIATION = Coefficients().length_variation


def batch_of(share: float, draws: int) -> Batch:
    """Samples whose mean is this share of the cap."""
    return Batch(draws, 1, CAP, "longest", share * CAP)


@pytest.mark.parametrize("drops_long", [False, True])
@pytest.mark.parametrize("draws", [1, 2, 8, 64])
def test_seconds_take_the_mean_of_what_bytes_draw(draws: int, drops_long: bool) -> None:
    """Mean and spread of the longest sample are those of the law's quantiles."""
    for share in SHARES[:3] if drops_long else SHARES:
        batch = batch_of(share, draws)
        law = cut_law(batch, draws, VARIATION, drops_long=drops_long)
        lengths = [float(law.length((place + 0.5) / 4000)) * CAP for place in range(4000)]
        longest = longest_sample(batch, draws, VARIATION, drops_long=drops_long)
        mean = statistics.fmean(lengths)
        assert float(longest.tokens) == pytest.approx(mean, rel=2e-3)
        assert float(longest.spread) == pytest.approx(statistics.pstdev(lengths) / mean, abs=4e-3)


def test_one_sample_is_not_padded_by_a_single_bit() -> None:
    """A mask reaches attention where the longest is above the mean, so one sample has exactly the mean."""
    for tokens in (1.0, 333.3, 1023.7, 2047.0):
        batch = Batch(1, 1, CAP, "longest", tokens)
        assert longest_sample(batch, 1, VARIATION, drops_long=False).tokens == tokens


def test_a_grid_has_the_numbers_of_its_points() -> None:
    """Arrays of batches and caps: the same as one by one, and the cap where every sample reaches it."""
    draws, caps = np.array([[1], [4], [16]]), np.array([256, 1024, 2048])
    grid = longest_sample(Batch(draws, 1, caps, "longest", 500.0), draws, VARIATION, drops_long=False)
    for row, count in enumerate((1, 4, 16)):
        for column, cap in enumerate((256, 1024, 2048)):
            one = Batch(count, 1, cap, "longest", 500.0)
            alone = longest_sample(one, count, VARIATION, drops_long=False)
            assert grid.tokens[row, column] == pytest.approx(float(alone.tokens))
            assert grid.spread[row, column] == pytest.approx(float(alone.spread))


@pytest.mark.parametrize("draws", LAW_LESS_RUN)
def test_a_run_without_a_table_of_lengths_is_fed_with_shorter_ones(draws: int) -> None:
    """A run draws evenly around the mean: its longest is never above what is predicted,
    and up to 14 % of the cap below.
    """
    for share, expected in zip(SHARES, LAW_LESS_RUN[draws], strict=True):
        batch = batch_of(share, draws)
        # The first two batches of a plan are chosen for their width.
        drawn = [each.width_tokens for seed in range(60) for each in plan_batches(batch, (), seed)[2:]]
        longest = longest_sample(batch, draws, VARIATION, drops_long=False)
        above = (float(longest.tokens) - statistics.fmean(drawn)) / CAP
        assert above == pytest.approx(expected, abs=0.012)


def test_a_run_and_a_prediction_have_one_mean() -> None:
    """What is said of a mean holds for samples of a run and for those of the law."""
    for share in SHARES:
        batch = batch_of(share, 4)
        drawn = [n for seed in range(60) for each in plan_batches(batch, (), seed)[2:] for n in each.lengths]
        assert statistics.fmean(drawn) == pytest.approx(share * CAP, rel=0.03)
        law = cut_law(batch, 1, VARIATION, drops_long=False)
        points = [float(law.length((place + 0.5) / 4000)) * CAP for place in range(4000)]
        assert statistics.fmean(points) == pytest.approx(share * CAP, rel=2e-3)


def test_the_longest_of_a_whole_run_is_the_cap_from_a_mean_of_half_of_it() -> None:
    """Predictions take the cap in any case: below that mean a run shows less than they say."""
    for share in SHARES:
        batch = batch_of(share, 4)
        law = cut_law(batch, 4, VARIATION, drops_long=False)
        assert float(law.length(1 - 1e-12)) == pytest.approx(1.0)
        longest = plan_batches(batch, (), 0)[0].width_tokens
        assert longest == pytest.approx(min(2 * share, 1) * CAP, abs=2)


@pytest.mark.parametrize("draws", [1, 4, 16])
def test_quantiles_of_a_run_are_the_table_of_a_prediction(draws: int) -> None:
    """The same data said twice: samples between quantiles, and the table that a data set's reader makes."""
    quantiles = (100, 300, 900)
    places = [(place + 0.5) / 1000 for place in range(2000)]
    table = SampleLengths.of([*(round(np.interp(each, range(3), quantiles)) for each in places), 900])
    plans = [plan_batches(Batch(draws, 1, 1000, "longest", 1000), quantiles, seed) for seed in range(80)]
    drawn = [each for plan in plans for each in plan[2:]]
    assert mean_length(quantiles) == pytest.approx(float(table.mean_tokens(1000)), rel=2e-3)
    assert statistics.fmean(n for each in drawn for n in each.lengths) == pytest.approx(400, rel=0.03)
    widths = [each.width_tokens for each in drawn]
    longest = table.longest(1000, draws)
    assert statistics.fmean(widths) == pytest.approx(float(longest.tokens), rel=0.03)
    assert statistics.pstdev(widths) / statistics.fmean(widths) == pytest.approx(longest.spread, abs=0.02)
    assert plans[0][0].width_tokens == table.length_within(1.0, 1000, draws) == 900


def test_where_long_samples_are_left_out_the_mean_stays() -> None:
    """Cut or left out, one sample has the mean that was said."""
    for share in (0.1, 0.25, 0.5):
        law = cut_law(batch_of(share, 1), 1, VARIATION, drops_long=True)
        mean = statistics.fmean(float(law.length((place + 0.5) / 4000)) for place in range(4000))
        assert mean == pytest.approx(share, abs=0.001)


def test_what_the_law_is_asked_about() -> None:
    """Lengths vary under padding to the longest alone; sorted samples are alike; no mean is above the cap."""
    batch = batch_of(0.5, 4)
    assert lengths_vary(batch)
    assert not lengths_vary(Batch(4, 1, CAP, "max_length", 100))
    assert not lengths_vary(batch_of(1.0, 4))
    assert [unlike_samples(batch, sorts_lengths=sorts) for sorts in (True, False)] == [1, 4]
    assert mean_tokens(Batch(4, 1, CAP, "longest", 2 * CAP)) == CAP


def longest_of(mean: float, cap: int, draws: int, variation: float) -> Longest:
    """The longest of samples of that mean, none above ``cap``."""
    batch = Batch(draws, 1, cap, "longest", mean)
    return longest_sample(batch, draws, variation, drops_long=False)


def test_one_sample_is_not_padded() -> None:
    """The longest of one is the mean."""
    assert longest_of(725.0, 1024, 1, 0.8).tokens == pytest.approx(725)


def test_longest_grows_towards_the_cap() -> None:
    """More samples in a batch pad further, and never beyond the cap."""
    lengths = [longest_of(725.0, 1024, draws, 0.8).tokens for draws in (1, 2, 4, 8, 64, 4096)]
    assert lengths == sorted(lengths)
    assert lengths[-1] <= 1024


def test_far_below_the_cap_the_spread_decides() -> None:
    """A cap far away does not pad short samples to it:
    two exponential draws of mean 100 have an expected longest of 150.
    """
    assert longest_of(100.0, 100_000, 2, 1.0).tokens == pytest.approx(150, rel=0.02)


def test_full_samples_are_not_padded() -> None:
    """Where every sample reaches the cap, so does the batch."""
    assert longest_of(1024.0, 1024, 8, 0.8).tokens == 1024


class TestSpreadOfLengths:
    """Standard deviation over mean of the longest sample of a batch."""

    def test_one_draw_below_the_cap(self) -> None:
        """An exponential that starts at 0.25 and is cut at ``t`` has the mean square 2 (1 - (1 + t) e^-t)
        above its start, and the mean 1 - e^-t.
        """
        law = cut_law(Batch(1, 1, 2048, "longest", 1024), 1, 0.8, drops_long=False)
        mean = 1 - exp(-law.end)
        square = 2 * (1 - (1 + law.end) * exp(-law.end))
        assert law.start == pytest.approx(0.25)
        assert (0.25 + mean) / (0.25 + law.end) == pytest.approx(0.5)
        spread = (square - mean**2) ** 0.5 / (0.25 + mean)
        assert longest_of(1024, 2048, 1, 0.8).spread == pytest.approx(spread, rel=2e-3)

    def test_far_below_the_cap(self) -> None:
        """One draw has the variation of the samples."""
        assert longest_of(10, 100_000, 1, 0.8).spread == pytest.approx(0.8, rel=5e-3)

    def test_samples_that_fill_the_length_have_none(self) -> None:
        """All are as long as the cap."""
        assert longest_of(2048, 2048, 4, 0.8).spread == 0

    @pytest.mark.parametrize(("mean", "cap"), [(1024, 2048), (300, 8192)])
    def test_the_longest_of_many_varies_less(self, mean: int, cap: int) -> None:
        """More draws, less spread."""
        spreads = [float(longest_of(mean, cap, draws, 0.8).spread) for draws in (1, 2, 8, 64)]
        assert spreads == sorted(spreads, reverse=True)
        assert fmean(spreads) > 0
