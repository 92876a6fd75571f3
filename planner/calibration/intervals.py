"""Split conformal intervals: quantiles of held-out scores, every source alike, classes leaning on the whole.

A score is ``log(measured / predicted) / scale``; the scale follows from the prediction (:mod:`planner.domain.scale`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.calibration.targets import Floats
from planner.domain.interval import Quantity, Spread, SpreadKey, SpreadOf, find_spread, log_range

_PROBABILITIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995)
# A source of n readings counts n to this power: its readings err alike (0: it counts once, however many they are), and yet
# many of them tell more of the scatter than few (1: each counts the same).  Five sources tell what must be held, and one of them
# has more readings than all others: each counts once there.  No theory gives 0.75: it was chosen between 0 and 1 with the
# published rows in sight, by held-out coverage and width.
_READINGS_POWER: Mapping[Quantity, float] = {"memory": 0.75, "time": 0.75, "host_memory": 0.75, "need": 0.0}
# The whole counts in a class like this many sources of the class: with as many, the class decides half.
_COARSER_COUNTS = 2.0
# No class of its own below this: the whole says the same with more data.
_MIN_GROUPS = 2
_NEED = SpreadKey("need")


@dataclass(frozen=True, slots=True)
class Residual:
    """One held-out reading: ``log_ratio`` is ``log(measured / predicted)``, the prediction by a fit that never saw its group.

    ``of``: what was read; ``scale``: of that prediction; ``weight``: how much the reading counts beside others of its group;
    ``reach``: how far the order of samples alone moves it, down and up, as logarithms: its interval is at least as wide.
    """

    record_id: str
    group: str
    of: SpreadOf
    key: SpreadKey
    log_ratio: float
    scale: float = 1.0
    weight: float = 1.0
    reach: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Held:
    """One reading against the interval made from all other groups: whether it lay inside, and half the interval's width.

    ``half_width`` is a fraction of the prediction.
    """

    residual: Residual
    inside: bool
    half_width: float


def make_spreads(residuals: Iterable[Residual]) -> tuple[Spread, ...]:
    """Distributions of all classes with readings from at least two groups, and of each quantity as a whole."""
    members: dict[SpreadKey, list[Residual]] = {}
    for residual in residuals:
        for key in (*residual.key.path(), *([_NEED] if _tells_need(residual) else [])):
            members.setdefault(key, []).append(residual)
    return tuple(
        _spread(key, members) for key, mine in members.items() if key == SpreadKey(key.of) or _n_groups(mine) >= _MIN_GROUPS
    )


def held_out(residuals: Sequence[Residual]) -> tuple[Held, ...]:
    """Each reading against the interval made from all groups but its own."""
    found = []
    for group in dict.fromkeys(each.group for each in residuals):
        spreads = {each.key: each for each in make_spreads(each for each in residuals if each.group != group)}
        for each in residuals:
            if each.group == group and (spread := find_spread(spreads, each.key)):
                low, high = log_range(spread, each.scale)
                low, high = min(low, each.reach[0]), max(high, each.reach[1])
                found.append(Held(each, low <= each.log_ratio <= high, float(np.exp(high) - np.exp(low)) / 2))
    return tuple(found)


def measured_coverage(residuals: Sequence[Residual]) -> dict[SpreadOf, float]:
    """Share of readings inside the interval made from all other groups, by what was read."""
    inside: dict[SpreadOf, list[bool]] = {}
    for each in held_out(residuals):
        inside.setdefault(each.residual.of, []).append(each.inside)
    return {of: float(np.mean(hits)) for of, hits in inside.items()}


def _tells_need(residual: Residual) -> bool:
    """Whether a reading stands for what must be held at once, which no meter shows.

    Allocated is most of it, and the driver's total of fixed shapes is little more; what is reserved, and what natural lengths
    pile up, is cache that is given back before a job fails.
    """
    return residual.of in ("allocated", "driver") and residual.key.lengths == "fixed"


def _n_groups(residuals: Iterable[Residual]) -> int:
    return len({each.group for each in residuals})


def _spread(key: SpreadKey, members: Mapping[SpreadKey, Sequence[Residual]]) -> Spread:
    """The distribution of a class: its own readings, and those of the whole at the weight of a few sources."""
    scores, weights = np.zeros(0), np.zeros(0)
    for each in key.path():
        own_scores, own_weights = _weighted(members[each], _READINGS_POWER[key.of])
        if len(weights):
            weights *= _COARSER_COUNTS * own_weights.sum() / (_n_groups(members[each]) * weights.sum())
        scores, weights = np.concatenate([scores, own_scores]), np.concatenate([weights, own_weights])
    return Spread(
        key=key,
        probabilities=_PROBABILITIES,
        scores=tuple(_conformal(scores, weights, probability) for probability in _PROBABILITIES),
        n_rows=len(members[key]),
        n_groups=_n_groups(members[key]),
    )


def _weighted(residuals: Sequence[Residual], power: float) -> tuple[Floats, Floats]:
    """Scores and weights: readings of one document err alike, so a group counts less than all of them, by a power."""
    totals: dict[str, float] = {}
    for each in residuals:
        totals[each.group] = totals.get(each.group, 0.0) + each.weight
    scores = np.array([each.log_ratio / each.scale for each in residuals])
    return scores, np.array([each.weight * totals[each.group] ** (power - 1) for each in residuals])


def _conformal(scores: Floats, weights: Floats, probability: float) -> float:
    """Weighted quantile with room for one unseen reading of mean weight: outwards on both sides of the median.

    Source: Tibshirani et al. 2019 (arXiv 1904.06060), weighted conformal quantile.
    """
    sign = 1.0 if probability >= 0.5 else -1.0
    share = probability if probability >= 0.5 else 1 - probability
    order = np.argsort(sign * scores)
    cumulative = np.cumsum(weights[order])
    needed = share * (cumulative[-1] + weights.mean())
    index = min(int(np.searchsorted(cumulative, needed)), len(scores) - 1)
    return float(scores[order][index])
