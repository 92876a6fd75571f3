"""One job with many batches and lengths, answered as the quick reading answers one scenario."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from planner.domain.prediction import MemoryPrediction, TimePrediction
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import Calibration, lengths_of
from planner.domain.uncertainty.coefficients import Coefficients
from planner.domain.uncertainty.interval import WIDEST_LOG, Spread, SpreadKey, log_range
from planner.domain.uncertainty.scale import Doubt, lifted, memory_scale, need_scale, time_scale
from planner.errors import RefusedCombinationError, UsageError
from planner.memory.quick import predict_quick
from planner.predicting import PRIORS, order_reach_bytes
from planner.program.job import job_of
from planner.searching.variants import refusals, with_sizes
from planner.throughput.step_time import predict_time

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

# Points answered at once: arrays of this many numbers (0.5 MiB each) stay in the processor's cache.
CHUNK_POINTS = 65_536


@dataclass(frozen=True, slots=True)
class Grid:
    """Answers of all points; arrays are indexed ``[batch, length]``.

    ``batch``: samples per GPU and micro-step; ``length``: tokens.  ``driver_peak_bytes`` is what the driver
    shows on the base's card, capped by it.  ``must_have_bytes`` is the minimum memory, which decides whether
    a job fits.  ``step_s`` is ``None`` where the rates of the card are unknown, ``intervals`` without a
    calibration.
    """

    batch: Floats
    length: Floats
    driver_peak_bytes: Floats
    must_have_bytes: Floats
    step_s: Floats | None
    intervals: GridIntervals | None = None


def estimate_grid(
    base: Scenario,
    model: Coefficients | Calibration = PRIORS,
    *,
    batch: Sequence[float] = (),
    length: Sequence[float] = (),
) -> Grid:
    """Peak GPU memory and step time of ``base`` with every size of ``batch`` and ``length``;
    with a calibration also intervals and P(fits).

    An axis left empty keeps the value of ``base``.  Lengths of samples follow
    :meth:`planner.domain.recipes.recipe.Batch.mean_tokens_at`.

    Raises:
        UsageError: an axis that is not one-dimensional, finite and at least 1.
        RefusedCombinationError: a rule refuses the largest point.
    """
    own = base.recipe.batch
    values = _Values(base, _axis("batch", batch, own.micro_batch), _axis("length", length, own.seq_len))
    if reasons := refusals(values.largest()):
        raise RefusedCombinationError("; ".join(reasons.values()))
    return _answer(values, model)


@dataclass(frozen=True, slots=True)
class _Values:
    """The axes as arrays, and how to put values of them into the base."""

    base: Scenario
    batch: Floats
    length: Floats

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Slices of the axes with at most about ``CHUNK_POINTS`` points each."""
        batch, length = self.batch.size, self.length.size
        lengths = max(1, min(length, CHUNK_POINTS))
        batches = max(1, min(batch, CHUNK_POINTS // lengths))
        for start, end in self._alike():
            for left in range(start, end, lengths):
                for first in range(0, batch, batches):
                    yield slice(first, first + batches), slice(left, min(left + lengths, end))

    def _alike(self) -> Iterator[tuple[int, int]]:
        """Runs of lengths that are all padded or all not:
        an attention mask exists for a whole chunk or for none of it.
        """
        batch, length = self.base.recipe.batch, self.length
        padded = batch.mean_tokens_at(length) < batch.padded_within(length)
        edges = [0, *(np.flatnonzero(np.diff(padded)) + 1).tolist(), length.size]
        return pairwise(edges)

    def scenario(self, part: tuple[slice, slice]) -> Scenario:
        """The base with each axis along its own dimension,
        so that a term keeps the size of the axes it depends on.
        """
        return self._put(self.batch[part[0]].reshape(-1, 1), self.length[part[1]].reshape(1, -1))

    def largest(self) -> Scenario:
        """The corner of the grid where both numbers are largest: what a rule refuses anywhere,
        it refuses there.
        """
        return self._put(int(self.batch.max()), int(self.length.max()))

    def _put(self, batch: Number, length: Number) -> Scenario:
        own = self.base.recipe.batch
        return with_sizes(self.base, batch, own.padded_within(length), own.mean_tokens_at(length))


def _axis(name: str, given: Sequence[float], fixed: Number) -> Floats:
    values = np.asarray(given if len(given) else [fixed], dtype=np.float64)
    if values.ndim != 1 or not np.all(np.isfinite(values)) or not np.all(values >= 1):
        raise UsageError(f"axis '{name}' must be a list of finite numbers of at least 1")
    return values


def _answer(values: _Values, model: Coefficients | Calibration) -> Grid:
    base, shape = values.base, (values.batch.size, values.length.size)
    driver, must_have, step = (np.empty(shape) for _ in range(3))
    judge = Judge.of(model, base) if isinstance(model, Calibration) else None
    coefficients = model.coefficients_for(base) if isinstance(model, Calibration) else model
    intervals = no_intervals(shape) if judge else None
    timed = True
    for part in values.chunks():
        chunk = values.scenario(part)
        memory = predict_quick(job_of(chunk, coefficients))
        time = predict_time(chunk, coefficients)
        # Assignment broadcasts what does not depend on both axes.
        driver[part], must_have[part] = memory.driver_peak_bytes, memory.must_have_bytes
        if time is None:
            timed = False
        else:
            step[part] = time.step_s
        if judge and intervals:
            judge.put(intervals, part, memory, time)
    return Grid(values.batch, values.length, driver, must_have, step if timed else None, intervals)


@dataclass(frozen=True, slots=True)
class GridIntervals:
    """Ends of the 90 % intervals, and the chance to fit;
    ``nan`` where the calibration or the card says nothing.

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
        return cls(
            memory=calibration.spread_for(SpreadKey.memory("driver", lengths_of(base))),
            need=calibration.spread_for(SpreadKey("need")),
            time=calibration.spread_for(SpreadKey("time")),
            doubt=calibration.doubt(base),
        )

    def put(
        self,
        into: GridIntervals,
        part: tuple[slice, slice],
        memory: MemoryPrediction,
        time: TimePrediction | None,
    ) -> None:
        """Write the answers of one chunk; assignment broadcasts what does not depend on both axes."""
        if self.memory is not None:
            into.driver_low_bytes[part], into.driver_high_bytes[part] = self._driver(self.memory, memory)
        if self.need is not None and memory.limit_bytes is not None:
            need = np.asarray(memory.must_have_bytes, dtype=np.float64)
            moved = lifted(need) - need
            room = np.log((max(memory.limit_bytes, 1) + moved) / (need + moved))
            into.fits_probability[part] = _shares_below(
                self.need, room / np.asarray(need_scale(memory, self.doubt))
            )
        if self.time is not None and time is not None:
            ends = zip(log_range(self.time, 1.0), (True, False), strict=True)
            into.step_low_s[part], into.step_high_s[part] = (
                time.step_s * _exp(end * np.asarray(time_scale(time, self.doubt, below=below)))
                for end, below in ends
            )

    def _driver(self, spread: Spread, memory: MemoryPrediction) -> tuple[Floats, Floats]:
        """Around what an unlimited card would show, downwards around what this card shows where that is less;
        nothing above the card is expected of a job that is predicted to fit.
        """
        shown = np.asarray(memory.driver_peak_bytes, dtype=np.float64)
        scale = np.asarray(memory_scale(memory, "driver", self.doubt), dtype=np.float64)
        value = memory.uncapped_driver_bytes
        moved = lifted(value) - value
        low, high = (lifted(value) * _exp(end * scale) for end in log_range(spread, 1.0))
        low, high = np.maximum(low * np.minimum(shown / value, 1.0) - moved, 0.0), high - moved
        down, up = order_reach_bytes(memory)
        low, high = np.minimum(low, value - down), np.maximum(high, value + up)
        ceiling = np.inf if memory.limit_bytes is None else float(memory.limit_bytes)
        return np.minimum(low, shown), np.where(
            shown <= ceiling, np.maximum(np.minimum(high, ceiling), shown), high
        )


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
