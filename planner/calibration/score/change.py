"""What a new calibration did to one row: its numbers before and after,
and the part of each coefficient that moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.calibration.score.rows import QUANTITIES, Comparison, RowScore, score_record
from planner.domain.uncertainty.calibration import Calibration
from planner.domain.uncertainty.coefficients import PRIORS, Coefficients
from planner.domain.uncertainty.prior import Prior

# Smaller moves change no digit that a report prints.
_SMALLEST_MOVE = 1e-3


@dataclass(frozen=True, slots=True)
class Moved:
    """One coefficient that differs for this row.

    ``effect``: by quantity, what this move alone does to the earlier prediction, a fraction of it.
    """

    prior: Prior
    before: float
    after: float
    effect: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row under an earlier calibration (of ``date``), and the coefficients that moved since."""

    date: str
    before: RowScore
    moved: tuple[Moved, ...]


def change_of(row: RowScore, earlier: Calibration, now: Calibration) -> RowChange | None:
    """What changed for ``row`` from ``earlier`` to ``now``; ``None`` for a row that is not modelled."""
    if row.scenario is None:
        return None
    first, last = earlier.coefficients_for(row.scenario), now.coefficients_for(row.scenario)
    before = score_record(row.record, earlier)
    moved = [_moved(row, before, prior, first, last) for prior in PRIORS if _differs(prior.name, first, last)]
    return RowChange(
        earlier.date,
        before,
        tuple(sorted(moved, key=lambda each: -max(map(abs, each.effect.values()), default=0))),
    )


def _differs(name: str, first: Coefficients, last: Coefficients) -> bool:
    before, after = float(getattr(first, name)), float(getattr(last, name))
    return abs(after - before) > _SMALLEST_MOVE * max(abs(before), abs(after))


def _moved(row: RowScore, before: RowScore, prior: Prior, first: Coefficients, last: Coefficients) -> Moved:
    after = float(getattr(last, prior.name))
    values: dict[str, Any] = {prior.name: after}
    alone = score_record(row.record, replace(first, **values))
    effect = {}
    for name in QUANTITIES:
        base: Comparison | None = getattr(before, name)
        changed: Comparison | None = getattr(alone, name)
        if base is not None and changed is not None:
            effect[name] = changed.predicted / base.predicted - 1
    return Moved(prior, float(getattr(first, prior.name)), after, effect)
