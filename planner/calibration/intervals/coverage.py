"""How often intervals hold readings of a source that had no part in making them.

For each group, quantiles are taken among the other groups alone.  What is left of the judged group in them:
the predictions of the others are by fits that did see it (each misses only its own group), and moved a few
numbers by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration.intervals.spreads import Residual, make_spreads
from planner.domain.uncertainty.interval import SpreadOf, find_spread, log_range


@dataclass(frozen=True, slots=True)
class Held:
    """One reading against the interval made from all other groups: whether it lay inside,
    and half the interval's width.

    ``half_width`` is a fraction of the prediction.
    """

    residual: Residual
    inside: bool
    half_width: float


def held_out(residuals: Sequence[Residual]) -> tuple[Held, ...]:
    """Each reading against the interval made from all groups but its own."""
    found: list[Held] = []
    for group in dict.fromkeys(each.group for each in residuals):
        others = [each for each in residuals if each.group != group]
        found += judged([each for each in residuals if each.group == group], others)
    return tuple(found)


def judged(mine: Sequence[Residual], others: Sequence[Residual]) -> Iterator[Held]:
    """Readings against the intervals that all others make."""
    spreads = {each.key: each for each in make_spreads(others)}
    for each in mine:
        if spread := find_spread(spreads, each.key):
            low, high = log_range(spread, each.scale, each.below)
            low, high = min(low, each.reach[0]), max(high, each.reach[1])
            yield Held(each, low <= each.log_ratio <= high, float(np.exp(high) - np.exp(low)) / 2)


def measured_coverage(residuals: Sequence[Residual]) -> dict[SpreadOf, float]:
    """Share of readings inside the interval made from all other groups, by what was read."""
    inside: dict[SpreadOf, list[bool]] = {}
    for each in held_out(residuals):
        inside.setdefault(each.residual.of, []).append(each.inside)
    return {of: float(np.mean(hits)) for of, hits in inside.items()}
