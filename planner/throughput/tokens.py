"""How many tokens a micro-step computes, and how many of them are real."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from planner.anatomy.natural_lengths import longest_sample, mean_tokens, unlike_samples
from planner.domain.recipes.recipe import Number, Recipe
from planner.domain.stack import Stack
from planner.domain.uncertainty.coefficients import Coefficients


@dataclass(frozen=True, slots=True)
class MicroStep:
    """Tokens of one micro-step on one GPU.

    ``computed``: tokens that pass the model, padding included, ``length`` per sample; ``real``: without
    padding.  Of samples that several GPUs divide, ``length`` is that of the whole sample, whose keys every
    token attends to.  ``has_mask``: whether a padding mask reaches attention; an array of truth values on a
    grid.  ``spread``: standard deviation of ``length`` from one micro-step to the next, over its mean; 0
    where all are alike.
    """

    computed: Number
    real: Number
    length: Number
    has_mask: Any
    spread: Number = 0.0


def micro_step(recipe: Recipe, coefficients: Coefficients, stack: Stack) -> MicroStep:
    """Tokens of one micro-step.

    ``packed``: every token is real.  ``max_length``: all samples are padded to ``seq_len``.  ``longest``: to
    the longest of the batch (:func:`longest_sample`).  A batch of one is not padded under ``longest``, and
    next to none is where the stack puts samples of like length together (stack switch
    ``sorts_lengths``).  Where it rounds lengths up (``rounds_lengths``), nearly every batch has a mask.
    Ignored: the few tokens that this adds, and samples whose length needs none.
    """
    batch = recipe.batch
    if batch.padding == "packed":
        tokens = batch.rows * batch.seq_len
        masks = stack.masks_samples(recipe)
        length = tokens if masks and stack.joins_rows(recipe) else batch.seq_len
        return MicroStep(tokens, tokens, length * batch.parts, masks)
    natural = mean_tokens(batch)
    real = batch.rows * natural
    if batch.padding == "max_length":
        whole = batch.seq_len * batch.parts
        return MicroStep(batch.rows * batch.seq_len, real, whole, natural < batch.seq_len)
    draws = unlike_samples(batch, sorts_lengths=stack.sorts_lengths)
    variation = coefficients.length_variation
    longest = longest_sample(batch, draws, variation, drops_long=stack.drops_long_samples)
    length = longest.tokens
    has_mask = (natural < batch.seq_len) if stack.rounds_lengths else length > natural
    return MicroStep(batch.rows * length, real, length * batch.parts, has_mask, longest.spread)


def slowest_rank(
    own: MicroStep, recipe: Recipe, coefficients: Coefficients, ranks: Number, stack: Stack
) -> MicroStep:
    """The micro-step of the GPU that all others of the job wait for; ``own``, that of any GPU,
    where lengths do not vary.

    Where GPUs meet in every micro-step (ZeRO-2 and 3, FSDP, and any sharding without accumulation), each
    lasts as long as the longest of all samples that the GPUs compute then: ``batch x ranks`` draws.  DDP and
    ZeRO-1 meet once per step, over whose ``G`` micro-steps the excess of one GPU averages out as
    ``1 / sqrt(G)``.
    Source: order statistics as in :mod:`planner.anatomy.natural_lengths`; torch
    ``nn/parallel/distributed.py`` no_sync.
    """
    batch = recipe.batch
    if not recipe.sharding.communicates or batch.padding != "longest" or stack.sorts_lengths:
        return own
    draws, variation = batch.rows * ranks, coefficients.length_variation
    longest = longest_sample(batch, draws, variation, drops_long=stack.drops_long_samples)
    meets = recipe.sharding.reduces_each_micro_step
    share = 1.0 if meets else batch.grad_accum**-0.5
    length = own.length + (longest.tokens * batch.parts - own.length) * share
    spread = longest.spread if meets else own.spread
    return replace(own, computed=batch.rows * length / batch.parts, length=length, spread=spread)
