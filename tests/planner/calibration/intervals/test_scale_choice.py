"""How much each cause of scatter counts is chosen by held-out intervals,
and never by the source that they are judged on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from planner.calibration.fit.targets import Floats
from planner.calibration.intervals.coverage import held_out
from planner.calibration.intervals.scale_choice import (
    all_candidates,
    candidates,
    choose,
    clear_winner,
    parts_of,
    rescaled,
)
from planner.calibration.intervals.spreads import Residual, make_spreads
from planner.domain.uncertainty.interval import SpreadKey, find_spread, log_range
from planner.domain.uncertainty.scale import ScaleParts

MEMORY = SpreadKey("memory")
WEIGHTS = [float(each.order) for each in candidates("memory")]


def readings(group: str, scatter: Floats, order: float) -> list[Residual]:
    """Peaks of a group to which the order of samples adds nothing to as much as all else,
    and that err by that times ``order``.
    """
    shares = np.linspace(0, 1, len(scatter))
    errors = scatter * (1 + order * shares)
    scales = [tuple(float(1 + each * share) for each in WEIGHTS) for share in shares]
    return [
        Residual(f"{group}-{i}", group, "reserved", MEMORY, float(errors[i]), scales[i][0], scales=scales[i])
        for i in range(len(errors))
    ]


def sources(order: float, groups: int = 8, rows: int = 60) -> list[Residual]:
    """Several groups of one law."""
    generator = np.random.default_rng(11)
    return [
        each
        for g in range(groups)
        for each in readings(f"g{g}", 0.1 * generator.standard_normal(rows), order)
    ]


@pytest.mark.parametrize("order", sorted(set(WEIGHTS)))
def test_the_part_that_readings_scatter_by_is_found(order: float) -> None:
    """Among half, once and twice the guess, the choice is the one that errors were drawn with."""
    assert parts_of(choose(sources(order))).order == order


def test_a_guess_stands_where_sources_are_few() -> None:
    """Three sources cannot tell; nor can readings that no part moves."""
    assert parts_of(choose(sources(max(WEIGHTS), groups=3))) == ScaleParts()
    same = [replace(each, scales=(1.0,) * len(WEIGHTS)) for each in sources(max(WEIGHTS))]
    assert parts_of(choose(same)) == ScaleParts()


def test_a_gain_that_one_source_makes_is_chance() -> None:
    """The second candidate is better on the mean of four: by one of them alone, or by all."""
    alone = np.array([[1.0, 1.1], [1.0, 1.1], [1.0, 1.1], [1.0, 0.6]])
    alike = np.array([[1.0, 0.9], [1.0, 0.95], [1.0, 0.9], [1.0, 1.0]])
    assert np.argmin(alone.mean(axis=0)) == np.argmin(alike.mean(axis=0)) == 1
    assert [clear_winner(each) for each in (alone, alike)] == [0, 1]


def test_a_judged_source_has_no_say() -> None:
    """One source that scatters otherwise decides the choice on everything,
    and not the interval that it is judged by.
    """
    calm = sources(min(WEIGHTS), groups=4, rows=10)
    odd = readings("odd", 0.8 * np.random.default_rng(2).standard_normal(200), 8.0)
    everything = [*calm, *odd]
    assert choose(everything) != choose(calm)
    held = [each for each in held_out(everything) if each.residual.group == "odd"]
    mine = rescaled(odd, choose(calm))
    assert [each.residual.scale for each in held] == [each.scale for each in mine]


def test_scores_are_those_of_the_intervals_that_are_reported() -> None:
    """The choice has the least mean interval score of the intervals that each candidate would be given,
    classes included.

    Each source counts once, as in the quantiles: three of these have a quarter of the readings.
    """
    drawn = [
        replace(
            each, key=SpreadKey("memory", "fixed" if each.group < "g4" else "natural"), reach=(-0.01, 0.15)
        )
        for each in sources(max(WEIGHTS), groups=12, rows=60)
        if each.group not in ("g1", "g2", "g6") or int(each.record_id.rpartition("-")[2]) % 4 == 0
    ]
    groups = sorted({each.group for each in drawn})
    tried = [WEIGHTS.index(weight) for weight in sorted(set(WEIGHTS))]
    scores = [np.mean([reported_score(drawn, group, index) for group in groups]) for index in tried]
    assert len(set(scores)) == len(scores) == 3
    assert tried[int(np.argmin(scores))] == choose(drawn)["memory"]


def test_readings_that_repeat_themselves_have_no_more_say() -> None:
    """Each source counts once: four of 480 readings choose no more than with a fortieth of them, beside nine
    that would choose otherwise.
    """
    generator = np.random.default_rng(3)
    few = [
        each
        for g in range(9)
        for each in readings(f"few{g}", 0.1 * generator.standard_normal(12), min(WEIGHTS))
    ]
    other = [
        each
        for g in range(4)
        for each in readings(f"other{g}", 0.1 * generator.standard_normal(12), max(WEIGHTS))
    ]
    again = [replace(each, record_id=f"{each.record_id}-{n}") for n in range(40) for each in other]
    assert parts_of(choose(few)).order == min(WEIGHTS)
    assert parts_of(choose(other)).order == max(WEIGHTS)
    assert choose([*few, *again]) == choose([*few, *other])


def reported_score(residuals: Sequence[Residual], group: str, index: int) -> float:
    """Mean interval score of the readings of one group under one candidate,
    by the distributions of the others.
    """
    each_scaled = rescaled(residuals, {"memory": index})
    spreads = {each.key: each for each in make_spreads(each for each in each_scaled if each.group != group)}
    scores = []
    for each in each_scaled:
        if each.group == group and (spread := find_spread(spreads, each.key)):
            low, high = log_range(spread, each.scale)
            low, high = min(low, each.reach[0]), max(high, each.reach[1])
            scores.append(high - low + 20 * max(low - each.log_ratio, each.log_ratio - high, 0.0))
    return float(np.mean(scores))


def test_what_the_machine_adds_to_times_is_stated() -> None:
    """Times have one scale each, so that there is nothing to choose."""
    assert choose([replace(each, of="time", key=SpreadKey("time"), scales=()) for each in sources(1.0)]) == {}


def test_candidates_are_all_tried_at_once() -> None:
    """The arrays hold every candidate in order, and the guess comes first."""
    stacked, each = all_candidates("memory"), candidates("memory")
    assert each[0] == ScaleParts()
    assert len(set(each)) == len(each) == 3**4
    for name in ("counted", "unknown_lengths", "order", "fixed_bytes"):
        assert list(np.asarray(getattr(stacked, name))) == [getattr(one, name) for one in each]
