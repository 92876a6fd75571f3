"""How many tokens a micro-step computes, and how many of them are real."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from planner.arrays import minimum, sqrt, where
from planner.domain.coefficients import Coefficients
from planner.domain.recipe import Number, Recipe

_EULER_GAMMA = 0.5772156649015329


@dataclass(frozen=True, slots=True)
class MicroStep:
    """Tokens of one micro-step on one GPU.

    ``computed``: tokens that pass the model, padding included, ``length`` per sample; ``real``: without padding.
    ``has_mask``: whether a padding mask reaches attention; an array of truth values on a grid.
    ``spread``: standard deviation of ``length`` from one micro-step to the next, over its mean; 0 where all are alike.
    """

    computed: Number
    real: Number
    length: Number
    has_mask: Any
    spread: Number = 0.0


def micro_step(recipe: Recipe, coefficients: Coefficients, *, sorts_lengths: bool = False) -> MicroStep:
    """Tokens of one micro-step.

    ``packed``: every token is real.  ``max_length``: all samples are padded to ``seq_len``.  ``longest``: to the longest of the
    batch (:func:`expected_longest`).  A batch of one is not padded under ``longest``,
    and next to none is where the stack puts samples of like length together (``sorts_lengths``).
    """
    batch = recipe.batch
    if batch.padding == "packed":
        tokens = batch.micro_batch * batch.seq_len
        return MicroStep(tokens, tokens, batch.seq_len, False)
    natural = minimum(batch.tokens_per_sample, batch.seq_len)
    real = batch.micro_batch * natural
    if batch.padding == "max_length":
        return MicroStep(batch.micro_batch * batch.seq_len, real, batch.seq_len, natural < batch.seq_len)
    draws = 1 if sorts_lengths else batch.micro_batch
    length = expected_longest(natural, batch.seq_len, draws, coefficients.length_variation)
    spread = spread_of_longest(natural, batch.seq_len, draws, coefficients.length_variation)
    return MicroStep(batch.micro_batch * length, real, length, length > natural, spread)


def slowest_rank(own: MicroStep, recipe: Recipe, variation: float, ranks: Number, *, sorts_lengths: bool = False) -> MicroStep:
    """The micro-step of the GPU that all others of the job wait for; ``own``, that of any GPU, where lengths do not vary.

    Where GPUs meet in every micro-step (ZeRO-2 and 3, FSDP, and any sharding without accumulation), each lasts as long as the
    longest of all samples that the GPUs compute then: ``batch x ranks`` draws.  DDP and ZeRO-1 meet once per step, over whose
    ``G`` micro-steps the excess of one GPU averages out as ``1 / sqrt(G)``.
    Source: order statistics as in :func:`expected_longest`; torch ``nn/parallel/distributed.py`` no_sync.
    """
    batch = recipe.batch
    if not recipe.sharding.communicates or batch.padding != "longest" or sorts_lengths:
        return own
    natural = minimum(batch.tokens_per_sample, batch.seq_len)
    draws = batch.micro_batch * ranks
    longest = expected_longest(natural, batch.seq_len, draws, variation)
    meets = recipe.sharding.reduces_each_micro_step
    share = 1.0 if meets else batch.grad_accum**-0.5
    length = own.length + (longest - own.length) * share
    spread = spread_of_longest(natural, batch.seq_len, draws, variation) if meets else own.spread
    return replace(own, computed=batch.micro_batch * length, length=length, spread=spread)


def expected_longest(mean: Number, cap: Number, draws: Number, variation: float) -> Number:
    """Expected longest of ``draws`` samples of mean length ``mean``, none above ``cap``; tokens.

    The smaller of two expectations.  (1) Lengths bounded by the cap follow the power-function distribution with that mean, the
    only one-parameter law on ``[0, cap]`` whose maximum is of the same family: ``cap d m / (d m + cap - m)``.  (2) Far below
    the cap, samples spread like an exponential with coefficient of variation ``variation``: ``m (1 + variation (H_d - 1))``
    with the harmonic number ``H_d`` (Renyi's representation).  Both are the mean for one draw.
    Source: order statistics, Arnold, Balakrishnan and Nagaraja, "A First Course in Order Statistics", 2.2 and 4.6.
    """
    return cap if _all_alike(mean, cap) else minimum(*_longest_by_law(mean, cap, draws, variation))


def _all_alike(mean: Number, cap: Number) -> bool:
    """Whether every sample has the length of the cap, which saves the laws; a grid asks them."""
    return isinstance(mean, int | float) and isinstance(cap, int | float) and mean >= cap


def _longest_by_law(mean: Number, cap: Number, draws: Number, variation: float) -> tuple[Number, Number]:
    """What is expected of the longest by lengths bounded by the cap, and by samples far below it."""
    return cap * draws * mean / (draws * mean + cap - mean), mean * (1 + variation * (_harmonic(draws) - 1))


def spread_of_longest(mean: Number, cap: Number, draws: Number, variation: float) -> Number:
    """Standard deviation over mean of the longest of ``draws`` samples, under the two laws of :func:`expected_longest`.

    That of the law that gives the length, and the smaller one for a single draw, of which both give the mean:
    ``(cap - m) / sqrt(d m (d m + 2 (cap - m)))`` below the cap, and far below it
    ``variation sqrt(1 + 1/4 + ... + 1/d^2) / (1 + variation (H_d - 1))``.
    Source: as there.
    """
    if _all_alike(mean, cap):
        return 0.0
    room, drawn = cap - mean, draws * mean
    near = room / sqrt(drawn * (drawn + 2 * room))
    far = variation * sqrt(_squares(draws)) / (1 + variation * (_harmonic(draws) - 1))
    bounded, free = _longest_by_law(mean, cap, draws, variation)
    return where(draws <= 1, minimum(near, far), where(bounded < free, near, far))


def _squares(count: Number) -> Number:
    """``1 + 1/4 + ... + 1/count^2`` by its asymptotic series, exact at 1 (error below 3e-3 elsewhere)."""
    series = math.pi**2 / 6 - 1 / count + 1 / (2 * count * count) - 1 / (6 * count**3)
    return where(count <= 1, 1.0, series)


def _harmonic(count: Number) -> Number:
    """Harmonic number by its asymptotic series, exact at 1 (error below 1e-3 elsewhere)."""
    if isinstance(count, int | float):
        log: Number = math.log(count)
    else:
        import numpy as np

        log = np.log(count)
    series = log + _EULER_GAMMA + 1 / (2 * count) - 1 / (12 * count * count) + 1 / (120 * count**4)
    return where(count <= 1, 1.0, series)
