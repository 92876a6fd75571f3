"""How many tokens a micro-step computes, and how many of them are real."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from planner.arrays import minimum, where
from planner.domain.coefficients import Coefficients
from planner.domain.recipe import Number, Recipe

_EULER_GAMMA = 0.5772156649015329


@dataclass(frozen=True, slots=True)
class MicroStep:
    """Tokens of one micro-step on one GPU.

    ``computed``: tokens that pass the model, padding included, ``length`` per sample; ``real``: without padding.
    ``has_mask``: whether a padding mask reaches attention; an array of truth values on a grid.
    """

    computed: Number
    real: Number
    length: Number
    has_mask: Any


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
    return MicroStep(batch.micro_batch * length, real, length, length > natural)


def expected_longest(mean: Number, cap: Number, draws: Number, variation: float) -> Number:
    """Expected longest of ``draws`` samples of mean length ``mean``, none above ``cap``; tokens.

    The smaller of two expectations.  (1) Lengths bounded by the cap follow the power-function distribution with that mean, the
    only one-parameter law on ``[0, cap]`` whose maximum is of the same family: ``cap d m / (d m + cap - m)``.  (2) Far below
    the cap, samples spread like an exponential with coefficient of variation ``variation``: ``m (1 + variation (H_d - 1))``
    with the harmonic number ``H_d`` (Renyi's representation).  Both are the mean for one draw.
    Source: order statistics, Arnold, Balakrishnan and Nagaraja, "A First Course in Order Statistics", 2.2 and 4.6.
    Ignored: the spread of the maximum in the quadratic cost of attention.
    """
    bounded = cap * draws * mean / (draws * mean + cap - mean)
    spread = mean * (1 + variation * (_harmonic(draws) - 1))
    return minimum(bounded, spread)


def _harmonic(count: Number) -> Number:
    """Harmonic number by its asymptotic series, exact at 1 (error below 1e-3 elsewhere)."""
    if isinstance(count, int | float):
        log: Number = math.log(count)
    else:
        import numpy as np

        log = np.log(count)
    series = log + _EULER_GAMMA + 1 / (2 * count) - 1 / (12 * count * count) + 1 / (120 * count**4)
    return where(count <= 1, 1.0, series)
