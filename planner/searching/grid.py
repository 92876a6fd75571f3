"""One job with many batches and lengths, answered as the quick reading answers one scenario."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.errors import RefusedCombinationError, UsageError
from planner.memory.quick import predict_quick
from planner.predicting import PRIORS
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
    a job fits.  ``step_s`` is ``None`` where the rates of the card are unknown.
    """

    batch: Floats
    length: Floats
    driver_peak_bytes: Floats
    must_have_bytes: Floats
    step_s: Floats | None


def estimate_grid(
    base: Scenario,
    coefficients: Coefficients = PRIORS,
    *,
    batch: Sequence[float] = (),
    length: Sequence[float] = (),
) -> Grid:
    """Peak GPU memory and step time of ``base`` with every size of ``batch`` and ``length``.

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
    return _answer(values, coefficients)


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


def _answer(values: _Values, coefficients: Coefficients) -> Grid:
    shape = values.batch.size, values.length.size
    driver, must_have, step = (np.empty(shape) for _ in range(3))
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
    return Grid(values.batch, values.length, driver, must_have, step if timed else None)
