"""Distributions of measured over predicted, and the intervals and probabilities that follow from them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.units import GIGA

SpreadOf = Literal["allocated", "reserved", "driver", "time", "host_memory"]
"""What a number is: one of the three levels of GPU memory, the time of a step, host RAM."""
Quantity = Literal["memory", "need", "time", "host_memory"]
"""What never shares a distribution.  The three levels of GPU memory do; ``need`` is the minimum memory."""
Lengths = Literal["fixed", "natural"]
"""``natural``: samples are padded to the longest of their batch,
so that shapes change from step to step and the cache grows.
"""
NOMINAL_COVERAGE = 0.9
TAIL = (1 - NOMINAL_COVERAGE) / 2
# Standard deviations from the mean that hold that share of a normal distribution.
NORMAL_QUANTILE = 1.645
# An interval that is a billion times as high as the prediction says nothing;
# exponentials of more would overflow.
WIDEST_LOG = math.log(GIGA)


@dataclass(frozen=True, slots=True)
class SpreadKey:
    """What distributions are kept apart by; ``lengths`` and ``level`` are empty where they are not.

    What is allocated is counted operator by operator, and is nearer than the levels above it, which hold what
    the allocator keeps: more of it where lengths vary.  Times have one distribution: six sources tell of
    natural lengths, and a class of theirs was twice as wide and held 97 %.  Methods, distance and the two
    levels have none of their own either: these would rest on two or three sources each, and held-out coverage
    was worse with them.  All of these widen and narrow an interval through its scale.
    """

    of: Quantity
    lengths: Lengths | Literal[""] = ""
    level: Literal["allocated", ""] = ""

    @classmethod
    def memory(cls, level: SpreadOf, lengths: Lengths) -> SpreadKey:
        """The key of a peak at one level."""
        return cls("memory", lengths, "allocated" if level == "allocated" else "")

    def path(self) -> tuple[SpreadKey, ...]:
        """The class that keeps nothing apart, then this one: of what is allocated, whatever the lengths."""
        own = replace(self, lengths="") if self.level else self
        return tuple(dict.fromkeys((SpreadKey(self.of), own)))


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of ``log(measured / predicted) / scale`` on sources that the fit did not see:
    its quantiles.

    ``scores``: quantiles at ``probabilities``; the scale of a prediction is that of
    :mod:`planner.domain.uncertainty.scale`.
    ``n_rows`` and ``n_groups`` are of the class itself; where they are
    few, the quantiles lean on the coarser class.
    """

    key: SpreadKey
    probabilities: tuple[float, ...]
    scores: tuple[float, ...]
    n_rows: int
    n_groups: int

    def quantile(self, probability: float) -> float:
        """The score that a share ``probability`` of measurements stays below;
        linear between the stored quantiles.
        """
        return _interpolate(self.probabilities, self.scores, probability)

    def share_below(self, score: float) -> float:
        """The share of measurements whose score is at most ``score``."""
        if score < self.scores[0]:
            return 0.0
        if score >= self.scores[-1]:
            return 1.0
        return _interpolate(self.scores, self.probabilities, score)


@dataclass(frozen=True, slots=True)
class Interval:
    """A range in the unit of the number that it belongs to."""

    low: float
    high: float


def log_range(spread: Spread, scale: float, below: float | None = None) -> tuple[float, float]:
    """The central :data:`NOMINAL_COVERAGE` of ``log(measured / predicted)``, not symmetric;
    the prediction itself is inside.

    ``below``: the scale of what is less than predicted, where it is another one.
    """
    down = scale if below is None else below
    low, high = down * spread.quantile(TAIL), scale * spread.quantile(1 - TAIL)
    return max(min(low, 0.0), -WIDEST_LOG), min(max(high, 0.0), WIDEST_LOG)


def interval_around(spread: Spread, value: float, scale: float, below: float | None = None) -> Interval:
    """Where :data:`NOMINAL_COVERAGE` of measurements lie of what is predicted as ``value``, in its unit;
    scales as of :func:`log_range`.
    """
    low, high = log_range(spread, scale, below)
    return Interval(value * math.exp(low), value * math.exp(high))


def find_spread(table: Mapping[SpreadKey, Spread], key: SpreadKey) -> Spread | None:
    """The distribution of ``key`` or of the finest class on its path that there is;
    ``None`` without any of its kind.
    """
    return next((table[each] for each in reversed(key.path()) if each in table), None)


def _interpolate(knots: Sequence[float], values: Sequence[float], at: float) -> float:
    if at <= knots[0]:
        return values[0]
    if at >= knots[-1]:
        return values[-1]
    upper = bisect_right(knots, at)
    lower = upper - 1
    span = knots[upper] - knots[lower]
    return (
        values[lower] + (values[upper] - values[lower]) * (at - knots[lower]) / span
        if span > 0
        else values[upper]
    )
