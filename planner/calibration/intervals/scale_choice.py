"""How much each part of a scale counts: what makes held-out intervals narrow for what they hold.

Every part of :class:`planner.domain.uncertainty.scale.ScaleParts` that memory scatters by may count half,
once or twice its first guess.  Candidates are compared by their mean interval score: the width of the
interval, and 20 times the distance by which a reading misses a 90 % interval.  Each source is held out in
turn and counts once, as in the quantiles.  The first guess stands where the best is less than one standard
error better, because sources differ by far more than candidates do.  Where a source is judged, the choice is
made among the others (:mod:`planner.calibration.intervals.coverage`).

What time scatters by is stated and not chosen: of a dozen sources, the errors of one decide which weight is
best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from planner.calibration.fit.targets import Floats
from planner.calibration.intervals.spreads import Residual, by_class, conformal, leaning
from planner.domain.uncertainty.interval import TAIL, Quantity
from planner.domain.uncertainty.scale import ScaleParts

_FACTORS = (1.0, 0.5, 2.0)
_PARTS: Mapping[Quantity, tuple[str, ...]] = {
    "memory": ("counted", "unknown_lengths", "order", "fixed_bytes")
}
# Of fewer groups none can be left out and a distribution made of the rest that is more than one source's.
_MIN_GROUPS_TO_CHOOSE = 4

Choice = Mapping[Quantity, int]
"""Which candidate is taken for each quantity that has a choice."""


def candidates(of: Quantity) -> tuple[ScaleParts, ...]:
    """What may be chosen for a quantity; the first is what was guessed, and wins a tie."""
    names, guessed = _PARTS[of], ScaleParts()
    found = []
    for factors in product(_FACTORS, repeat=len(names)):
        changed = {name: getattr(guessed, name) * factor for name, factor in zip(names, factors, strict=True)}
        found.append(replace(guessed, **changed))
    return tuple(found)


def all_candidates(of: Quantity) -> ScaleParts:
    """The candidates as one whose parts are arrays, so that one call gives the scales under all of them."""
    found = candidates(of)
    return replace(
        ScaleParts(), **{name: np.array([getattr(each, name) for each in found]) for name in _PARTS[of]}
    )


def choose(residuals: Sequence[Residual]) -> Choice:
    """The candidate for each quantity that is clearly best by the ``residuals``;
    the first where none is, or where they are of too few groups to tell.
    """
    found: dict[Quantity, int] = {}
    for of in _PARTS:
        mine = [each for each in residuals if each.key.of == of and each.scales]
        if mine:
            enough = len({each.group for each in mine}) >= _MIN_GROUPS_TO_CHOOSE
            found[of] = clear_winner(_scores_by_group(mine)) if enough else 0
    return found


def clear_winner(scores: Floats) -> int:
    """The candidate with the least mean score, or the first where that is within one standard error of it.

    ``scores``: a row for each group, a column for each candidate.
    """
    best = int(np.argmin(scores.mean(axis=0)))
    gains = scores[:, 0] - scores[:, best]
    return best if gains.mean() > gains.std() / len(gains) ** 0.5 else 0


def rescaled(residuals: Sequence[Residual], choice: Choice) -> tuple[Residual, ...]:
    """The residuals with their scales under a choice."""
    return tuple(
        replace(each, scale=each.scales[choice[each.key.of]])
        if each.scales and each.key.of in choice
        else each
        for each in residuals
    )


def parts_of(choice: Choice) -> ScaleParts:
    """What a choice says of all parts together."""
    parts = ScaleParts()
    for of, index in choice.items():
        best = candidates(of)[index]
        parts = replace(parts, **{name: getattr(best, name) for name in _PARTS[of]})
    return parts


def _scores_by_group(residuals: Sequence[Residual]) -> Floats:
    """Mean interval score of each candidate over the readings of each group, predicted by the others."""
    return np.array(
        [_group_scores(residuals, group) for group in dict.fromkeys(each.group for each in residuals)]
    )


def _group_scores(residuals: Sequence[Residual], group: str) -> Floats:
    """Mean interval score of each candidate over the readings of one group, from the readings of all others.

    Formula: high - low + (2 / 0.1) x what the reading lies below or above, all as logarithms.
    Source: Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", 2007, 6.2.
    """
    members = by_class(each for each in residuals if each.group != group)
    mine = [each for each in residuals if each.group == group]
    total, weight = np.zeros(len(mine[0].scales)), 0.0
    for wanted in dict.fromkeys(each.key for each in mine):
        key = next(each for each in reversed(wanted.path()) if each in members)
        counted, weights = leaning(key, members)
        scores = (
            np.array([each.log_ratio for each in counted]) / np.array([each.scales for each in counted]).T
        )
        ends = conformal(scores, weights, TAIL), conformal(scores, weights, 1 - TAIL)
        for each in mine:
            if each.key == wanted:
                total += each.weight * _interval_score(each, ends)
                weight += each.weight
    return total / weight


def _interval_score(residual: Residual, ends: tuple[Floats, Floats]) -> Floats:
    scales = np.array(residual.scales)
    low = np.minimum(scales * ends[0], min(residual.reach[0], 0.0))
    high = np.maximum(scales * ends[1], max(residual.reach[1], 0.0))
    outside = np.maximum(low - residual.log_ratio, 0.0) + np.maximum(residual.log_ratio - high, 0.0)
    score: Floats = high - low + outside / TAIL
    return score
