"""How long to go on: warm-up, counted steps, and when the spread has settled."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from measure.run.cases.case import RunOptions

MIN_FOR_QUARTILES = 4


@dataclass(slots=True)
class Pace:
    """Counts the steps of one run.  The readings of the first ``options.warmup`` steps are kept apart."""

    options: RunOptions
    durations_s: list[float] = field(default_factory=list)

    @property
    def in_warmup(self) -> bool:
        """Whether the next step still belongs to the warm-up."""
        return len(self.durations_s) < self.options.warmup

    @property
    def counted_s(self) -> list[float]:
        """Durations of the counted steps."""
        return self.durations_s[self.options.warmup :]

    def add(self, duration_s: float) -> None:
        """One step is over."""
        self.durations_s.append(duration_s)

    @property
    def enough(self) -> bool:
        """Whether to stop: enough steps, and the spread has settled,
        the budget is spent or the largest count reached.
        """
        counted = self.counted_s
        if len(counted) < self.options.steps:
            return False
        if len(counted) >= self.options.max_steps or sum(self.durations_s) >= self.options.budget_s:
            return True
        return relative_spread(counted) <= self.options.settle


def relative_spread(values: Sequence[float]) -> float:
    """Interquartile range over median; with fewer than four values the whole range over the median."""
    median = statistics.median(values)
    if median <= 0:
        return 0.0
    return interquartile_range(values) / median


def interquartile_range(values: Sequence[float]) -> float:
    """Third quartile less first; the whole range for fewer than four values, 0 for one."""
    if len(values) < MIN_FOR_QUARTILES:
        return max(values) - min(values)
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first
