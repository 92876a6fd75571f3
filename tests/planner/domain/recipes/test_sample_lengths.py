"""What follows from a table of lengths, against all batches drawn one by one."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.domain.recipes.sample_lengths import SampleLengths

LENGTHS = [10, 10, 40, 200, 800]


@pytest.mark.parametrize(("cap", "drops_long"), [(1000, False), (100, False), (100, True)])
def test_mean_and_longest_are_those_of_every_possible_batch(cap: int, drops_long: bool) -> None:
    """All 125 batches of three, or 27 of those that are left."""
    table = replace(SampleLengths.of(LENGTHS), drops_long=drops_long)
    samples = (
        [each for each in LENGTHS if each <= cap] if drops_long else [min(each, cap) for each in LENGTHS]
    )
    batches = [max(batch) for batch in product(samples, repeat=3)]
    longest = table.longest(cap, 3)
    assert table.mean_tokens(cap) == pytest.approx(statistics.fmean(samples))
    assert longest.tokens == pytest.approx(statistics.fmean(batches))
    assert longest.spread == pytest.approx(statistics.pstdev(batches) / statistics.fmean(batches))
    for share in (0.05, 0.3, 0.6, 0.9, 1.0):
        expected = sorted(batches)[max(int(np.ceil(share * len(batches))) - 1, 0)]
        assert table.length_within(share, cap, 3) == pytest.approx(expected)


def test_a_grid_answers_as_single_jobs_do() -> None:
    """Where no sample is left below the cap, the cap stands in."""
    table = replace(SampleLengths.of(LENGTHS), drops_long=True)
    caps, draws = np.array([[5.0], [100.0], [900.0]]), np.array([[1.0, 4.0]])
    grid = table.longest(caps, draws)
    for row, cap in enumerate(caps[:, 0]):
        for column, each in enumerate(draws[0]):
            assert grid.tokens[row, column] == pytest.approx(table.longest(float(cap), float(each)).tokens)
    assert table.mean_tokens(caps)[:, 0] == pytest.approx([5, 20, 212])


def test_the_longest_sample_has_a_row_of_its_own() -> None:
    """Samples within 1 % share a row and its mean, but the peak is that of the longest."""
    table = SampleLengths.of([10_000, 10_010, 10_020])
    assert table.tokens == (10_005, 10_020)
    assert table.counts == (2, 1)
