"""Natural lengths of samples: the one place that says how they are distributed.

Where the data set was read, its table of lengths says so (:mod:`planner.domain.sample_lengths`).  Else two
laws stand in, because each is compared with what its readers predict, and joining them would move
predictions.  :class:`CutLaw` is an exponential that starts above 0 and is cut at the cap.  Bytes follow it:
they need the whole distribution.  :func:`expected_longest` is one number in closed form.  Seconds follow it.
Both have the mean that the samples have.  For one draw they agree.  The longest of 2 to 64 samples differs by
up to 6 % of the cap, most where the mean is 0.25 to 0.75 of it;
``tests/planner/anatomy/test_natural_lengths.py`` holds the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.arrays import exp, log, maximum, minimum, sqrt, where
from planner.domain.recipe import Batch, Number
from planner.domain.sample_lengths import Longest, SampleLengths

_EULER_GAMMA = 0.5772156649015329
_NEWTON_STEPS = 12
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


def longest_sample(batch: Batch, draws: Number, variation: float) -> Longest:
    """The longest of ``draws`` samples: by the table of the data set, or by the law of natural lengths."""
    if batch.lengths is not None:
        return batch.lengths.longest(batch.seq_len, draws)
    mean, cap = mean_tokens(batch), batch.seq_len
    return Longest(
        expected_longest(mean, cap, draws, variation), spread_of_longest(mean, cap, draws, variation)
    )


def unlike_samples(batch: Batch, *, sorts_lengths: bool) -> Number:
    """Samples of unlike length in one micro-batch:
    one where the stack puts samples of like length together.
    """
    return 1 if sorts_lengths else batch.rows


@dataclass(frozen=True, slots=True)
class CutLaw:
    """Lengths of samples in units of their spread: they begin at ``start`` and end at ``start + end``,
    the cap.

    ``samples``: how many of them, of unlike length, make one batch.  ``kept``:
    share of the law that is drawn from.
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


@dataclass(frozen=True, slots=True)
class TableLaw:
    """Lengths of batches of ``samples`` sequences of a table, none above ``cap`` tokens."""

    table: SampleLengths
    cap: float
    samples: float

    def length(self, below: float) -> float:
        """As :meth:`CutLaw.length`."""
        return self.table.length_within(below, self.cap, self.samples) / self.cap


def length_law(batch: Batch, variation: float, *, drops_long: bool, sorts_lengths: bool) -> CutLaw | TableLaw:
    """How long batches are: by the table of the data set, or by :func:`cut_law`."""
    if batch.lengths is not None:
        samples = unlike_samples(batch, sorts_lengths=sorts_lengths)
        return TableLaw(batch.lengths, float(batch.seq_len), float(samples))
    return cut_law(batch, variation, drops_long=drops_long, sorts_lengths=sorts_lengths)


def cut_law(batch: Batch, variation: float, *, drops_long: bool, sorts_lengths: bool) -> CutLaw:
    """The exponential of coefficient of variation ``variation``,
    cut at the cap so that its mean is that of the samples.

    ``drops_long``: samples above the cap are left out, not cut.
    """
    start = maximum((1 - variation) / variation, _LEAST_START)
    mean = mean_tokens(batch) / batch.seq_len
    end = _level_of_last(mean, start) if drops_long else _level_of_cap(mean, start)
    # Of the samples' law: what lies below the cap, which is all of it where longer samples are left out.
    kept: Number = 1 - exp(-end) if drops_long else 1.0
    return CutLaw(start, end, unlike_samples(batch, sorts_lengths=sorts_lengths), kept)


def _level_of_cap(mean: Number, start: Number) -> Number:
    """The level t at which the cap cuts lengths whose mean is ``mean`` of the cap.

    It solves ``mean (start + t) = start + 1 - e^-t`` by Newton's method from above,
    where the difference is concave.
    """
    level = (start + 1) / mean - start
    for _ in range(_NEWTON_STEPS):
        tail = exp(-level)
        level = level - (start + 1 - tail - mean * (start + level)) / (tail - mean)
    return level


def _level_of_last(mean: Number, start: Number) -> Number:
    """The same where samples above the cap are left out.

    It solves ``mean (start + t) = start + 1 - t / (e^t - 1)``, whose right side is concave,
    by Newton's method from above.
    """
    level = (start + 1) / mean - start
    for _ in range(_NEWTON_STEPS):
        rest = exp(-level)
        left_out = level * rest / (1 - rest)
        slope = mean + left_out / level - left_out / (1 - rest)
        level = maximum(level - (mean * (start + level) - start - 1 + left_out) / slope, _LEAST_LEVEL)
    return level


def expected_longest(mean: Number, cap: Number, draws: Number, variation: float) -> Number:
    """Expected longest of ``draws`` samples of mean length ``mean``, none above ``cap``; tokens.

    The smaller of two expectations.  (1) Lengths bounded by the cap follow the power-function distribution
    with that mean, the only one-parameter law on ``[0, cap]`` whose maximum is of the same family:
    ``cap d m / (d m + cap - m)``.  (2) Far below the cap, samples spread like an exponential with coefficient
    of variation ``variation``: ``m (1 + variation (H_d - 1))`` with the harmonic number ``H_d`` (Renyi's
    representation).  Both are the mean for one draw.
    Source: order statistics, Arnold, Balakrishnan and Nagaraja, "A First Course in Order Statistics",
    2.2 and 4.6.
    """
    return cap if _all_alike(mean, cap) else minimum(*_longest_by_law(mean, cap, draws, variation))


def _all_alike(mean: Number, cap: Number) -> bool:
    """Whether every sample has the length of the cap, which saves the laws; a grid asks them."""
    return isinstance(mean, int | float) and isinstance(cap, int | float) and mean >= cap


def _longest_by_law(mean: Number, cap: Number, draws: Number, variation: float) -> tuple[Number, Number]:
    """What is expected of the longest by lengths bounded by the cap, and by samples far below it."""
    return cap * draws * mean / (draws * mean + cap - mean), mean * (1 + variation * (_harmonic(draws) - 1))


def spread_of_longest(mean: Number, cap: Number, draws: Number, variation: float) -> Number:
    """Standard deviation over mean of the longest of ``draws`` samples, under the two laws of
    :func:`expected_longest`.

    That of the law that gives the length, and the smaller one for a single draw, of which both give the mean:
    ``(cap - m) / sqrt(d m (d m + 2 (cap - m)))`` below the cap, and far below it
    ``variation sqrt(1 + 1/4 + ... + 1/d^2) / (1 + variation (H_d - 1))``.
    Source: as of :func:`expected_longest`.
    """
    if _all_alike(mean, cap):
        return 0.0
    room, drawn = cap - mean, draws * mean
    near = room / sqrt(drawn * (drawn + 2 * room))
    far = variation * sqrt(_squares(draws)) / (1 + variation * (_harmonic(draws) - 1))
    bounded, free = _longest_by_law(mean, cap, draws, variation)
    return where(draws <= 1, minimum(near, far), where(bounded < free, near, far))


def _squares(count: Number) -> Number:
    """``1 + 1/4 + ... + 1/count^2`` by its asymptotic series, exact at 1 (error below 3e-3 elsewhere)."""
    series = math.pi**2 / 6 - 1 / count + 1 / (2 * count * count) - 1 / (6 * count**3)
    return where(count <= 1, 1.0, series)


def _harmonic(count: Number) -> Number:
    """Harmonic number by its asymptotic series, exact at 1 (error below 1e-3 elsewhere)."""
    if isinstance(count, int | float):
        log: Number = math.log(count)
    else:
        import numpy as np

        log = np.log(count)
    series = log + _EULER_GAMMA + 1 / (2 * count) - 1 / (12 * count * count) + 1 / (120 * count**4)
    return where(count <= 1, 1.0, series)
