"""The batches of drawn runs that are longer than all before them.

Where samples are padded to the longest of their batch,
such a batch finds no cached blocks of its size. Shorter ones do.
"""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

from planner.anatomy.natural_lengths import CutLaw, TableLaw, length_law, lengths_vary, unlike_samples
from planner.arrays import ceil_div
from planner.domain.recipes.recipe import Number
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import Job

N_ORDERS = 8
"""Orders of the samples that are drawn."""
# Micro-steps of a run where the scenario does not say how many samples there are.
_MICRO_STEPS = 1000
# Batches that are longer by less than this share find room in rounded blocks.
_LEAST_GROWTH = 1.01


class NewLongest(NamedTuple):
    """A batch that is longer than all before it: its place among the micro-steps of the run,
    and its padded tokens per sample.
    """

    micro_step: int
    tokens: int


def drawn_longest(job: Job, order: int = 0) -> list[NewLongest]:
    """Each new longest batch of one of ``N_ORDERS`` drawn runs; empty where lengths do not vary.

    Formula: what is reserved after these batches, one after the other, less what batches as long as the cap
    reserve; the mean of all orders.  Lengths follow :func:`planner.anatomy.natural_lengths.length_law`.  The
    run has as many micro-steps as its samples give, or 1,000.  Nothing is drawn where caches are emptied
    (stack switch ``keeps_outgrown_blocks``), or where segments grow: there a longer batch gets pages behind
    what is free, and in the end no more is reserved than for batches as long as the cap.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp: a cached block serves no larger request.
    """
    batch, stack = job.recipe.batch, job.stack
    if not lengths_vary(batch) or not stack.piles_up:
        return []
    if job.scenario.segments_grow:
        return []
    draw = Random(order)  # noqa: S311 - lengths, no secret
    return _records(_law(job), int(batch.seq_len), micro_steps(job), draw)


def longest_of_batch_tokens(job: Job, share: float) -> Number:
    """Padded tokens per sample that the ``share`` of the batches do not exceed;
    the cap where batches have one length.
    """
    batch = job.recipe.batch
    if not lengths_vary(batch) or share >= 1:
        return batch.seq_len
    return ceil_div(_law(job).length(share) * batch.seq_len, 1)


def _law(job: Job) -> CutLaw | TableLaw:
    """How long the samples of the job are."""
    # Not the calibrated one: it is fitted to times,
    # and a replay would have to be made anew for each of its values.
    stack, variation = job.stack, Coefficients().length_variation
    draws = unlike_samples(job.recipe.batch, sorts_lengths=stack.sorts_lengths)
    return length_law(job.recipe.batch, draws, variation, drops_long=stack.drops_long_samples)


def _records(law: CutLaw | TableLaw, cap: int, n_steps: int, draw: Random) -> list[NewLongest]:
    """New longest batches among ``n_steps``:
    the share of batches below each is uniform above the share before.
    """
    step, below = 0, 0.0
    found: list[NewLongest] = []
    while step < n_steps:
        below += (1 - below) * draw.random()
        length = math.ceil(float(law.length(below)) * cap)
        if not found or length > found[-1].tokens * _LEAST_GROWTH:
            found.append(NewLongest(step, min(length, cap)))
        if length >= cap:
            break
        # How many batches pass until one is longer: geometric.
        step += 1 + int(math.log(1 - draw.random()) / math.log(below)) if below < 1 else n_steps
    return found


def micro_steps(job: Job) -> int:
    """Micro-steps of one GPU over the whole run."""
    run = job.scenario.run
    if run.n_samples is None:
        return _MICRO_STEPS
    steps = (
        run.n_samples * run.epochs / (float(job.recipe.batch.micro_batch) * float(job.hardware.world_size))
    )
    return max(int(steps), 1)
