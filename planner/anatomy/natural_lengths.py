"""Natural lengths of samples: the one place that says how they are distributed.

Where the data set was read, its table of lengths says so
(:mod:`planner.domain.recipes.sample_lengths`).  Else :class:`CutLaw` stands in: an
exponential that starts above 0 and is cut at the cap.  Bytes draw batches from it,
and seconds take the mean and the spread of the longest of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from planner.arrays import exp, largest, log, maximum, minimum, sqrt, where
from planner.domain.recipes.recipe import Batch, Number
from planner.domain.recipes.sample_lengths import Longest, SampleLengths

_NEWTON_STEPS = 12
# Integrals are taken by Gauss's rule of two points in each of so many panels; where its points lie.
_PANELS = 16
_PLACES = (0.5 - 12**-0.5, 0.5 + 12**-0.5)
# Beyond this level above the logarithm of the draws, one longest sample in a million lies.
_LAST_LEVEL = 14.0
# Lengths have at least this smallest value, in units of the spread: an exponential that starts at 0 has none.
_LEAST_START = 0.02
# And the cap at least this level, in the same units: means next to the cap.
_LEAST_LEVEL = 1e-4


def lengths_vary(batch: Batch) -> bool:
    """Whether batches are padded to the longest of their samples, and samples are shorter than the cap."""
    return batch.padding == "longest" and batch.is_padded


def mean_tokens(batch: Batch) -> Number:
    """Mean real tokens of a sample, none longer than the cap."""
    return minimum(batch.tokens_per_sample, batch.seq_len)


def longest_sample(batch: Batch, draws: Number, variation: float, *, drops_long: bool) -> Longest:
    """The longest of ``draws`` samples: by the table of the data set, or by the law of natural lengths."""
    if batch.lengths is not None:
        return batch.lengths.longest(batch.seq_len, draws)
    mean, cap = mean_tokens(batch), batch.seq_len
    # Every sample as long as the cap needs no law.
    if largest(cap - mean) <= 0:
        return Longest(cap, 0.0)
    law = cut_law(batch, draws, variation, drops_long=drops_long)
    longest, spread = law.longest()
    # One sample has the mean that was given, to the last digit: what is not longer is not padded.
    tokens = where(draws <= 1, mean, minimum(maximum(longest * cap, mean), cap))
    return Longest(where(mean >= cap, cap, tokens), where(mean >= cap, 0.0, spread))


def unlike_samples(batch: Batch, *, sorts_lengths: bool) -> Number:
    """Samples of unlike length in one micro-batch: one where the stack sorts them by length."""
    return 1 if sorts_lengths else batch.rows


@dataclass(frozen=True, slots=True)
class CutLaw:
    """Lengths of samples in units of their spread, from ``start`` to ``start + end``, the cap.

    ``samples``: how many of unlike length make one batch.  ``kept``: share of the law that is drawn from.
    """

    start: Number
    end: Number
    samples: Number
    kept: Number

    def length(self, below: Number) -> Number:
        """The length that the share ``below`` of the batches stay within, in units of the cap."""
        return minimum(
            (self.start - log(1 - below ** (1 / self.samples) * self.kept)) / (self.start + self.end), 1
        )

    def longest(self) -> tuple[Number, Number]:
        """Mean of a batch's length in units of the cap, and its standard deviation over that mean.

        Formula: ``start + the integral of 1 - F(x)`` up to ``end``, where ``F = ((1 - e^-x) / kept)^samples``
        is the share of batches within ``start + x``; the mean square with ``2 x (1 - F(x))``.
        Source: order statistics, Arnold, Balakrishnan and Nagaraja,
        "A First Course in Order Statistics", 2.2.
        """
        step = minimum(self.end, log(self.samples) + _LAST_LEVEL) / _PANELS
        mean: Number = 0.0
        square: Number = 0.0
        for panel, place in product(range(_PANELS), _PLACES):
            level = (panel + place) * step
            longer = step / 2 * (1 - ((1 - exp(-level)) / self.kept) ** self.samples)
            mean, square = mean + longer, square + 2 * level * longer
        spread = sqrt(maximum(square - mean * mean, 0.0)) / (self.start + mean)
        return (self.start + mean) / (self.start + self.end), spread


@dataclass(frozen=True, slots=True)
class TableLaw:
    """Lengths of batches of ``samples`` sequences of a table, none above ``cap`` tokens."""

    table: SampleLengths
    cap: float
    samples: float

    def length(self, below: float) -> float:
        """As :meth:`CutLaw.length`."""
        return self.table.length_within(below, self.cap, self.samples) / self.cap


def length_law(batch: Batch, draws: Number, variation: float, *, drops_long: bool) -> CutLaw | TableLaw:
    """How long batches of ``draws`` samples are: by the table of the data set, or by :func:`cut_law`."""
    if batch.lengths is not None:
        return TableLaw(batch.lengths, float(batch.seq_len), float(draws))
    return cut_law(batch, draws, variation, drops_long=drops_long)


def cut_law(batch: Batch, draws: Number, variation: float, *, drops_long: bool) -> CutLaw:
    """The exponential of this coefficient of variation, cut at the cap, with the mean of the samples.

    ``drops_long``: samples above the cap are left out, not cut.
    """
    start = maximum((1 - variation) / variation, _LEAST_START)
    mean = mean_tokens(batch) / batch.seq_len
    end = _level_of_last(mean, start) if drops_long else _level_of_cap(mean, start)
    # Of the samples' law: what lies below the cap, which is all of it where longer samples are left out.
    kept: Number = 1 - exp(-end) if drops_long else 1.0
    return CutLaw(start, end, draws, kept)


def _level_of_cap(mean: Number, start: Number) -> Number:
    """The level t at which the cap cuts lengths whose mean is ``mean`` of the cap.

    It solves ``mean (start + t) = start + 1 - e^-t``, concave, by Newton's method from above.
    """
    level = (start + 1) / mean - start
    for _ in range(_NEWTON_STEPS):
        tail = exp(-level)
        level = level - (start + 1 - tail - mean * (start + level)) / (tail - mean)
    return level


def _level_of_last(mean: Number, start: Number) -> Number:
    """The same where samples above the cap are left out.

    It solves ``mean (start + t) = start + 1 - t / (e^t - 1)``, concave, by Newton's method from above.
    """
    level = (start + 1) / mean - start
    for _ in range(_NEWTON_STEPS):
        rest = exp(-level)
        left_out = level * rest / (1 - rest)
        slope = mean + left_out / level - left_out / (1 - rest)
        level = maximum(level - (mean * (start + level) - start - 1 + left_out) / slope, _LEAST_LEVEL)
    return level
