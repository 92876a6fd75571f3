"""Intervals and P(fits) of every point of a grid, by the calibration and the scales that judge one scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.domain.calibration import Calibration, lengths_of
from planner.domain.interval import WIDEST_LOG, Spread, SpreadKey, log_range
from planner.domain.prediction import MemoryPrediction, TimePrediction
from planner.domain.scale import Doubt, lifted, memory_scale, need_scale, time_scale
from planner.domain.scenario import Scenario
from planner.prediction import order_reach_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GridIntervals:
    """Ends of the 90 % intervals, and the chance to fit; ``nan`` where the calibration or the card says nothing.

    Arrays have the shape of the grid; ``driver_*`` are in bytes, ``step_*`` in seconds.
    """

    driver_low_bytes: Floats
    driver_high_bytes: Floats
    fits_probability: Floats
    step_low_s: Floats
    step_high_s: Floats


@dataclass(frozen=True, slots=True)
class Judge:
    """What points of one grid are judged by: distributions, and how little is known of the grid's base."""

    memory: Spread | None
    need: Spread | None
    time: Spread | None
    doubt: Doubt

    @classmethod
    def of(cls, calibration: Calibration, base: Scenario) -> Judge:
        """The judge of a grid around ``base``; whether lengths vary is that of the base."""
        lengths = lengths_of(base)
        return cls(
            memory=calibration.spread_for(SpreadKey("memory", lengths)),
            need=calibration.spread_for(SpreadKey("need")),
            time=calibration.spread_for(SpreadKey("time")),
            doubt=calibration.doubt(base),
        )

    def put(self, into: GridIntervals, part: tuple[slice, slice], memory: MemoryPrediction, time: TimePrediction | None) -> None:
        """Write the answers of one chunk; assignment broadcasts what does not depend on every axis."""
        if self.memory is not None:
            into.driver_low_bytes[part], into.driver_high_bytes[part] = self._driver(self.memory, memory)
        if self.need is not None and memory.limit_bytes is not None:
            need = np.asarray(memory.must_have_bytes, dtype=np.float64)
            moved = lifted(need) - need
            room = np.log((max(memory.limit_bytes, 1) + moved) / (need + moved))
            into.fits_probability[part] = _shares_below(self.need, room / np.asarray(need_scale(memory, self.doubt)))
        if self.time is not None and time is not None:
            scale = np.asarray(time_scale(time, self.doubt), dtype=np.float64)
            low, high = log_range(self.time, 1.0)
            into.step_low_s[part], into.step_high_s[part] = (time.step_s * _exp(end * scale) for end in (low, high))

    def _driver(self, spread: Spread, memory: MemoryPrediction) -> tuple[Floats, Floats]:
        """Around what an unlimited card would show; nothing above the card is expected of a job that is said to fit."""
        shown = np.asarray(memory.driver_peak_bytes, dtype=np.float64)
        scale = np.asarray(memory_scale(memory, "driver", self.doubt), dtype=np.float64)
        value = memory.uncapped_driver_bytes
        moved = lifted(value) - value
        low, high = (lifted(value) * _exp(end * scale) - moved for end in log_range(spread, 1.0))
        low = np.maximum(low, 0.0)
        down, up = order_reach_bytes(memory)
        low, high = np.minimum(low, value - down), np.maximum(high, value + up)
        ceiling = np.inf if memory.limit_bytes is None else float(memory.limit_bytes)
        return np.minimum(low, shown), np.where(shown <= ceiling, np.maximum(np.minimum(high, ceiling), shown), high)


def _exp(log: Floats) -> Floats:
    """The factor of a logarithm, which is never wider than that of one answer (``log_range``)."""
    return np.exp(np.clip(log, -WIDEST_LOG, WIDEST_LOG))


def no_intervals(shape: tuple[int, ...]) -> GridIntervals:
    """Intervals of a grid of this shape before any is known."""
    return GridIntervals(*(np.full(shape, np.nan) for _ in range(5)))


def _shares_below(spread: Spread, scores: Floats) -> Floats:
    """:meth:`Spread.share_below` of many scores at once."""
    shares: Floats = np.interp(scores, spread.scores, spread.probabilities, left=0.0, right=1.0)
    return np.where(scores >= spread.scores[-1], 1.0, shares)
