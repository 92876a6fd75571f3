"""Split conformal intervals: quantiles of held-out log ratios, by what was read, method and distance from calibrated data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration.targets import Floats
from planner.domain.interval import NOMINAL_COVERAGE, Spread, SpreadKey, SpreadOf, find_spread

_PROBABILITIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995)
# A distribution of its own needs this many readings from this many groups; smaller classes use a coarser one.
_MIN_READINGS = 20
_MIN_GROUPS = 2


@dataclass(frozen=True, slots=True)
class Residual:
    """One held-out reading: ``log_ratio`` is ``log(measured / predicted)``, the prediction by a fit that never saw its group."""

    record_id: str
    group: str
    key: SpreadKey
    log_ratio: float


def make_spreads(residuals: Iterable[Residual]) -> tuple[Spread, ...]:
    """Distributions for all classes that have enough readings, and for each kind of reading one of all of them."""
    members: dict[SpreadKey, list[Residual]] = {}
    for residual in residuals:
        for key in residual.key.coarser():
            members.setdefault(key, []).append(residual)
    return tuple(_spread(key, mine) for key, mine in members.items() if key == SpreadKey(key.of) or _is_enough(mine))


def measured_coverage(residuals: Sequence[Residual]) -> dict[SpreadOf, float]:
    """Share of readings inside the interval made from all other groups, by what was read."""
    inside: dict[SpreadOf, list[bool]] = {}
    for group in dict.fromkeys(each.group for each in residuals):
        spreads = {each.key: each for each in make_spreads(each for each in residuals if each.group != group)}
        for each in residuals:
            if each.group == group and (spread := find_spread(spreads, each.key)):
                tail = (1 - NOMINAL_COVERAGE) / 2
                within = spread.quantile(tail) <= each.log_ratio <= spread.quantile(1 - tail)
                inside.setdefault(each.key.of, []).append(within)
    return {of: float(np.mean(hits)) for of, hits in inside.items()}


def _is_enough(residuals: Sequence[Residual]) -> bool:
    return len(residuals) >= _MIN_READINGS and len({each.group for each in residuals}) >= _MIN_GROUPS


def _spread(key: SpreadKey, residuals: Sequence[Residual]) -> Spread:
    counts = {group: sum(each.group == group for each in residuals) for group in {each.group for each in residuals}}
    # Between every reading alike (a long table decides) and every group alike (an anecdote does).
    weights = np.array([counts[each.group] ** -0.5 for each in residuals])
    values = np.array([each.log_ratio for each in residuals])
    quantiles = tuple(_conformal(values, weights, probability) for probability in _PROBABILITIES)
    return Spread(
        key=key,
        probabilities=_PROBABILITIES,
        log_ratios=quantiles,
        n_rows=len(residuals),
        n_groups=len(counts),
    )


def _conformal(values: Floats, weights: Floats, probability: float) -> float:
    """Weighted quantile with room for one unseen reading of mean weight: outwards on both sides of the median.

    Source: Tibshirani et al. 2019 (arXiv 1904.06060), weighted conformal quantile.
    """
    sign = 1.0 if probability >= 0.5 else -1.0
    share = probability if probability >= 0.5 else 1 - probability
    order = np.argsort(sign * values)
    cumulative = np.cumsum(weights[order])
    needed = share * (cumulative[-1] + weights.mean())
    index = min(int(np.searchsorted(cumulative, needed)), len(values) - 1)
    return float(values[order][index])
