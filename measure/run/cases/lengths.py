"""How long the samples are, and which of them make a micro-batch.  The same plan feeds every workload.

A run is fed with what is given about the data: its quantiles, or the table of a data set that was read, which
predictions take as well.
Where only a mean is given, lengths spread evenly around it.  Predictions have another law there
(:mod:`planner.anatomy.natural_lengths`), because a run that it feeds could never show it wrong.  Both have
that mean and differ in the longest sample of a whole run: predictions take the cap, and here it is
``min(2 x mean - 1, cap)``.  Below half of the cap such a run needs less than is predicted.
``tests/planner/anatomy/test_natural_lengths.py`` holds how far they are apart.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from planner.domain.recipes.recipe import Batch

# Distinct micro-batches before the data repeat.
_POOL = 16


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of one micro-batch: real tokens of each, and the width to which all are padded."""

    lengths: tuple[int, ...]
    width_tokens: int

    @property
    def real_tokens(self) -> int:
        """Tokens that are not padding."""
        return sum(self.lengths)

    @property
    def padded_tokens(self) -> int:
        """Tokens with padding."""
        return len(self.lengths) * self.width_tokens


def plan_batches(batch: Batch, quantiles: Sequence[int], seed: int) -> tuple[MicroBatch, ...]:
    """Micro-batches in the order in which they are used, the widest (then the fullest) first,
    so that the peak comes early.

    Packed rows are full.  A mean below the cap without quantiles or a data set is drawn evenly around the
    mean, which is not the law of predictions.
    """
    seq, rows = int(batch.seq_len), int(batch.micro_batch)
    fixed = batch.padding == "packed" or (not quantiles and batch.tokens_per_sample >= seq)
    if fixed:
        return (MicroBatch((seq,) * rows, seq),)
    length = _law(batch, quantiles, seq)
    draw = random.Random(seed)  # noqa: S311  (a repeatable sample, nothing secret)
    drawn = [tuple(length(draw.random()) for _ in range(rows)) for _ in range(_POOL)]
    batches = [
        MicroBatch(lengths, seq if batch.padding == "max_length" else max(lengths)) for lengths in drawn
    ]
    # The longest sample has to occur: what is asked for is the peak of a whole epoch.
    longest = MicroBatch((length(1.0),) * rows, seq if batch.padding == "max_length" else length(1.0))
    return (longest, *sorted(batches[1:], key=lambda each: -each.width_tokens)[:1], *batches[1:])


def mean_length(quantiles: Sequence[int]) -> float:
    """Mean of lengths drawn from evenly spaced quantiles, linear between them."""
    if len(quantiles) == 1:
        return float(quantiles[0])
    return sum((low + high) / 2 for low, high in pairwise(quantiles)) / (len(quantiles) - 1)


def _law(batch: Batch, quantiles: Sequence[int], seq: int) -> Callable[[float], int]:
    """Tokens of the sample that a share of all samples is not longer than: by the quantiles, by the table of
    the data set, or evenly around the mean.
    """
    table = batch.lengths
    if quantiles or table is None:
        return partial(_quantile, tuple(quantiles) or _even_law(float(batch.tokens_per_sample), seq))
    return lambda share: round(table.length_within(share, seq, 1))


def _even_law(mean: float, seq: int) -> tuple[int, int]:
    half = min(mean - 1, seq - mean)
    return (max(1, round(mean - half)), min(seq, round(mean + half)))


def _quantile(law: Sequence[int], fraction: float) -> int:
    """Value at ``fraction`` of evenly spaced quantiles, linear between them."""
    if len(law) == 1:
        return law[0]
    place = fraction * (len(law) - 1)
    index = min(int(place), len(law) - 2)
    return round(law[index] + (law[index + 1] - law[index]) * (place - index))
