"""Split conformal intervals: quantiles of held-out scores, every source alike, classes leaning on the whole.

A score is ``log(measured / predicted) / scale``; the scale follows from the prediction
(:mod:`planner.domain.uncertainty.scale`).  How often intervals hold readings of another source is measured in
:mod:`planner.calibration.intervals.coverage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from planner.calibration.fit.targets import NOISE, Floats
from planner.domain.uncertainty.interval import Quantity, Spread, SpreadKey, SpreadOf

_PROBABILITIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995)
# The whole counts in a class like this many sources of the class: with as many, the class decides half.
_COARSER_COUNTS = 2.0
# No class of its own below this: the whole says the same with more data.
_MIN_GROUPS = 2
_NEED = SpreadKey("need")
# One standard deviation of the logarithm at a scale of 1, as it is stated
# (:mod:`planner.domain.uncertainty.scale`, and :data:`planner.calibration.fit.targets.NOISE` for host RAM):
# what a quantity that one source alone tells of leans on.
_STATED_DEVIATION: Mapping[Quantity, float] = {
    "memory": 1 / 6,
    "need": 1 / 6,
    "time": 0.15,
    "host_memory": NOISE["host_memory"],
}
_STATED_READINGS = 40


@dataclass(frozen=True, slots=True)
class Residual:
    """One held-out reading: ``log_ratio`` is ``log(measured / predicted)``,
    the prediction by a fit that never saw its group.

    ``of``: what was read; ``scale``: of that prediction; ``below``: of readings that are less than predicted,
    where it is another one; ``weight``: how much the reading counts beside others of its group.

    ``reach``: how far the order of samples alone moves it, down and up, as logarithms: its interval is at
    least as wide.
    """

    record_id: str
    group: str
    of: SpreadOf
    key: SpreadKey
    log_ratio: float
    scale: float = 1.0
    weight: float = 1.0
    reach: tuple[float, float] = (0.0, 0.0)
    below: float | None = None

    @property
    def score(self) -> float:
        """``log_ratio`` over the scale of its side."""
        return self.log_ratio / (self.scale if self.below is None or self.log_ratio > 0 else self.below)


def make_spreads(residuals: Iterable[Residual]) -> tuple[Spread, ...]:
    """Distributions of all classes with readings from at least two groups,
    and of each quantity as a whole.
    """
    members = by_class(residuals)
    return tuple(_spread(key, members) for key in members)


def by_class(residuals: Iterable[Residual]) -> Mapping[SpreadKey, Sequence[Residual]]:
    """The readings of each class that has a distribution, and of each quantity as a whole;
    one reading is in several.
    """
    members: dict[SpreadKey, list[Residual]] = {}
    for residual in residuals:
        for key in (*residual.key.path(), *([_NEED] if _tells_need(residual) else [])):
            members.setdefault(key, []).append(residual)
    return {
        key: mine
        for key, mine in members.items()
        if key == SpreadKey(key.of) or _n_groups(mine) >= _MIN_GROUPS
    }


def _tells_need(residual: Residual) -> bool:
    """Whether a reading stands for the minimum memory, which no meter shows.

    Minimum memory is mostly allocated bytes, and the driver's total of fixed shapes is little more.  The rest
    of what is reserved, also what natural lengths pile up, is cache that is given back before a job fails.
    """
    return residual.of in ("allocated", "driver") and residual.key.lengths == "fixed"


def _n_groups(residuals: Iterable[Residual]) -> int:
    return len({each.group for each in residuals})


def _spread(key: SpreadKey, members: Mapping[SpreadKey, Sequence[Residual]]) -> Spread:
    counted, weights = leaning(key, members)
    scores = np.array([[each.score for each in counted]])
    return Spread(
        key=key,
        probabilities=_PROBABILITIES,
        scores=tuple(float(conformal(scores, weights, probability)[0]) for probability in _PROBABILITIES),
        n_rows=len(members[key]),
        n_groups=_n_groups(members[key]),
    )


def _stated(key: SpreadKey, members: Sequence[Residual]) -> tuple[Sequence[Residual], Floats]:
    """What one source alone leans on: the scatter that a scale of 1 is stated to stand for,
    as readings of a few sources.
    """
    deviation, one = NormalDist(0.0, _STATED_DEVIATION[key.of]), members[0]
    shares = [(place + 0.5) / _STATED_READINGS for place in range(_STATED_READINGS)]
    stated = [
        replace(one, group="", log_ratio=deviation.inv_cdf(share), scale=1.0, below=None, weight=1.0)
        for share in shares
    ]
    return stated, np.full(_STATED_READINGS, _COARSER_COUNTS / _STATED_READINGS)


def leaning(
    key: SpreadKey, members: Mapping[SpreadKey, Sequence[Residual]]
) -> tuple[Sequence[Residual], Floats]:
    """What tells of a class, with weights: its own readings,
    and those of the whole at the weight of a few sources.
    """
    whole = members[SpreadKey(key.of)]
    if _n_groups(whole) < _MIN_GROUPS:
        stated, weights = _stated(key, whole)
        return [*stated, *whole], np.concatenate([weights, _weights(whole)])
    counted: list[Residual] = []
    weights = np.zeros(0)
    for each in key.path():
        own = _weights(members[each])
        if len(weights):
            weights *= _COARSER_COUNTS * own.sum() / (_n_groups(members[each]) * weights.sum())
        counted, weights = [*counted, *members[each]], np.concatenate([weights, own])
    return counted, weights


def _weights(residuals: Sequence[Residual]) -> Floats:
    """Readings of one source err alike, so each source counts once, however many it has."""
    totals: dict[str, float] = {}
    for each in residuals:
        totals[each.group] = totals.get(each.group, 0.0) + each.weight
    return np.array([each.weight / totals[each.group] for each in residuals])


def conformal(scores: Floats, weights: Floats, probability: float) -> Floats:
    """Weighted quantile of each row with room for one unseen reading, outwards on both sides of the median.

    The unseen one is of another source, which is drawn like those here: its weight is the mean of theirs,
    each counted as often as it weighs.  Source: Tibshirani et al. 2019 (arXiv 1904.06060), weighted
    conformal quantile.
    """
    sign = 1.0 if probability >= 0.5 else -1.0
    share = probability if probability >= 0.5 else 1 - probability
    order = np.argsort(sign * scores, axis=1)
    cumulative = np.cumsum(weights[order], axis=1)
    needed = share * (cumulative[:, -1:] + (weights @ weights) / weights.sum())
    index = np.minimum(np.sum(cumulative < needed, axis=1), len(weights) - 1)
    rows = np.arange(len(scores))
    found: Floats = scores[rows, order[rows, index]]
    return found
