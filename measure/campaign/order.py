"""The order in which cases teach most when the time may end at any moment: new models,
methods and lengths before repeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from measure.campaign.file import PlannedCase

# Weight of seeing a value for the first time: what moves memory and time most comes first.
_AXES: dict[str, float] = {
    "method": 4.0,
    "model": 4.0,
    "seq": 2.0,
    "batch": 1.5,
    "workload": 1.5,
    "memory_limit_bytes": 1.5,
    "sharding": 1.0,
    "offload": 1.0,
    "optimizer": 1.0,
    "gradient_checkpointing": 1.0,
    "attention": 1.0,
    "loss": 1.0,
    "precision": 0.5,
}
# Pairs that matter together: a method on a model is another thing than each of them alone.
_PAIRS = (("model", "method"), ("method", "seq"))
_PAIR_WEIGHT = 1.0


def in_teaching_order(cases: Sequence[PlannedCase]) -> list[PlannedCase]:
    """``cases`` such that each next one has the most that was not there before;
    ties keep the order of the file.

    All first runs come before the second ones.
    """
    ordered: list[PlannedCase] = []
    seen: dict[tuple[str, Any], int] = defaultdict(int)
    for number in sorted({case.number for case in cases}):
        left = [case for case in cases if case.number == number]
        while left:
            best = max(left, key=lambda case: _novelty(case, seen))
            left.remove(best)
            ordered.append(best)
            for feature in _features(best):
                seen[feature] += 1
    return ordered


def _novelty(case: PlannedCase, seen: dict[tuple[str, Any], int]) -> float:
    return sum(_weight(name) / (1 + seen[name, value]) for name, value in _features(case))


def _weight(name: str) -> float:
    return _AXES.get(name, _PAIR_WEIGHT)


def _features(case: PlannedCase) -> list[tuple[str, Any]]:
    values = {**asdict(case.options), **case.values}
    single = [(name, values.get(name)) for name in _AXES]
    return single + [("+".join(pair), tuple(values.get(name) for name in pair)) for pair in _PAIRS]
