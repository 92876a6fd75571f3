"""Distributions of measured over predicted, and the intervals and probabilities that follow from them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

SpreadOf = Literal["allocated", "reserved", "driver", "time", "host_memory"]
"""What a distribution is of: one of the three levels of GPU memory, the time of a step, host RAM."""
SPREADS_OF: tuple[SpreadOf, ...] = get_args(SpreadOf)
Distance = Literal["near", "far"]
"""``near``: GPU generation, stack and method are among the calibrated ones; ``far``: at least one of them is not."""

Lengths = Literal["fixed", "natural"]
"""``natural``: samples are padded to the longest of their batch, so that shapes change from step to step and the cache grows."""

NOMINAL_COVERAGE = 0.9


@dataclass(frozen=True, slots=True)
class SpreadKey:
    """What distributions are kept apart by.  ``method``, ``lengths`` and ``distance`` are empty where they are not."""

    of: SpreadOf
    method: str = ""
    lengths: Lengths | Literal[""] = ""
    distance: Distance | Literal[""] = ""

    def coarser(self) -> tuple[SpreadKey, ...]:
        """This key and the ones that distinguish less and less, in the order in which they stand in for it."""
        return (
            self,
            SpreadKey(self.of, "", self.lengths, self.distance),
            SpreadKey(self.of, "", self.lengths),
            SpreadKey(self.of, "", "", self.distance),
            SpreadKey(self.of),
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of ``log(measured / predicted)`` on sources that the fit did not see: its quantiles at ``probabilities``."""

    key: SpreadKey
    probabilities: tuple[float, ...]
    log_ratios: tuple[float, ...]
    n_rows: int
    n_groups: int

    def quantile(self, probability: float) -> float:
        """The log ratio that a share ``probability`` of measurements stays below; linear between the stored quantiles."""
        return _interpolate(self.probabilities, self.log_ratios, probability)

    def share_below(self, log_ratio: float) -> float:
        """The share of measurements whose log ratio is at most ``log_ratio``."""
        if log_ratio < self.log_ratios[0]:
            return 0.0
        if log_ratio >= self.log_ratios[-1]:
            return 1.0
        return _interpolate(self.log_ratios, self.probabilities, log_ratio)


@dataclass(frozen=True, slots=True)
class Interval:
    """A range in the unit of the number that it belongs to."""

    low: float
    high: float


def interval_around(spread: Spread, value: float) -> Interval:
    """The central :data:`NOMINAL_COVERAGE` of what is measured where ``value`` is predicted, in its unit; not symmetric."""
    tail = (1 - NOMINAL_COVERAGE) / 2
    return Interval(value * math.exp(spread.quantile(tail)), value * math.exp(spread.quantile(1 - tail)))


def find_spread(table: Mapping[SpreadKey, Spread], key: SpreadKey) -> Spread | None:
    """The distribution of ``key`` or of the least coarse one that there is; ``None`` without any of its kind."""
    return next((table[each] for each in key.coarser() if each in table), None)


def _interpolate(knots: Sequence[float], values: Sequence[float], at: float) -> float:
    if at <= knots[0]:
        return values[0]
    if at >= knots[-1]:
        return values[-1]
    upper = bisect_right(knots, at)
    lower = upper - 1
    span = knots[upper] - knots[lower]
    return values[lower] + (values[upper] - values[lower]) * (at - knots[lower]) / span if span > 0 else values[upper]
