"""How often intervals hold readings of a source that had no part in making them.

For each group, the parts of the scale are chosen and the quantiles taken among the other groups alone.  What
is left of the judged group in them: the predictions of the others are by fits that did see it (each misses
only its own group).  :func:`held_out_twice` is rid of that as well, by a fit without every pair of groups; a
slow test says how little it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from planner.calibration.fit.solver import errors_of_fits
from planner.calibration.fit.split import CrossFit
from planner.calibration.fit.targets import Floats
from planner.calibration.intervals.residuals import spread_of
from planner.calibration.intervals.scale_choice import choose, rescaled
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


def held_out_twice(fit: CrossFit, residuals: Sequence[Residual]) -> tuple[Held, ...]:
    """:func:`held_out` for the readings of one fit,
    with the errors of the others under fits that saw neither of both groups.

    The strength of the priors is the one chosen without the judged group; scales are those of ``residuals``.
    """
    errors = _errors_without_pairs(fit)
    place = {target.record.id: row for row, target in enumerate(fit.problem.targets)}
    mine = [each for each in residuals if each.of in {spread_of(target) for target in fit.problem.targets}]
    found: list[Held] = []
    for group in dict.fromkeys(each.group for each in mine):
        others = [
            replace(each, log_ratio=-float(errors[group, each.group][place[each.record_id]]))
            for each in mine
            if each.group != group
        ]
        found += judged([each for each in mine if each.group == group], others)
    return tuple(found)


def _errors_without_pairs(fit: CrossFit) -> Mapping[tuple[str, str], Floats]:
    """Log errors of all readings by (judged group, another one), under a fit that saw neither."""
    names = np.array([target.group for target in fit.problem.targets])
    weights = fit.problem.weights()
    pulls = dict(zip(fit.groups, fit.pulls[1:], strict=True))
    jobs = list(dict.fromkeys((frozenset(pair), pulls[pair[0]]) for pair in permutations(fit.groups, 2)))
    seen = np.stack([weights * ~np.isin(names, list(pair)) for pair, _ in jobs])
    errors = dict(zip(jobs, errors_of_fits(fit.problem, seen, [pull for _, pull in jobs]), strict=True))
    return {pair: errors[frozenset(pair), pulls[pair[0]]] for pair in permutations(fit.groups, 2)}


def judged(mine: Sequence[Residual], others: Sequence[Residual]) -> Iterator[Held]:
    """Readings against the intervals that all others make."""
    choice = choose(others)
    spreads = {each.key: each for each in make_spreads(rescaled(others, choice))}
    for each in rescaled(mine, choice):
        if spread := find_spread(spreads, each.key):
            low, high = log_range(spread, each.scale)
            low, high = min(low, each.reach[0]), max(high, each.reach[1])
            yield Held(each, low <= each.log_ratio <= high, float(np.exp(high) - np.exp(low)) / 2)


def measured_coverage(residuals: Sequence[Residual]) -> dict[SpreadOf, float]:
    """Share of readings inside the interval made from all other groups, by what was read."""
    inside: dict[SpreadOf, list[bool]] = {}
    for each in held_out(residuals):
        inside.setdefault(each.residual.of, []).append(each.inside)
    return {of: float(np.mean(hits)) for of, hits in inside.items()}
