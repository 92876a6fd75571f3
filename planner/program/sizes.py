"""How many of each unit a job has."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.recipe import Number
from planner.program.job import Job
from planner.program.loss_pieces import piece_tokens
from planner.program.tensors import EVALUATED, Unit


def unit_values(job: Job) -> dict[Unit, Number]:
    """The number of each unit in one micro-batch of ``job``, and in one that is evaluated:
    as many samples, if none are said.
    """
    trained, n_samples = _units_of(job), job.scenario.run.eval_micro_batch
    evaluated = trained if n_samples is None else _units_of(_with_batch(job, n_samples))
    return trained | {EVALUATED[unit]: value for unit, value in evaluated.items() if unit in EVALUATED}


def _with_batch(job: Job, n_samples: int) -> Job:
    recipe = replace(job.recipe, batch=replace(job.recipe.batch, micro_batch=n_samples))
    return replace(job, scenario=replace(job.scenario, recipe=recipe))


def _units_of(job: Job) -> dict[Unit, Number]:
    batch, adapter = job.recipe.batch, job.recipe.adapter
    tokens, rank = batch.rows * batch.seq_len, adapter.rank if adapter else 0
    images = batch.images
    n_images: Number = batch.rows * images.per_sample if images else 0
    patches: Number = n_images * images.patches if images else 0
    return {
        Unit.ONE: 1,
        Unit.TOKENS: tokens,
        Unit.PAIRS: tokens * batch.seq_len,
        Unit.LENGTH: batch.seq_len,
        Unit.RANK: rank,
        Unit.RANK_TOKENS: rank * tokens,
        Unit.PIECE_TOKENS: piece_tokens(job),
        Unit.SINK_PAIRS: tokens * (batch.seq_len + 1),
        Unit.LENGTH_PAIRS: batch.seq_len * batch.seq_len,
        Unit.ROWS: batch.rows,
        Unit.PATCHES: patches,
        Unit.IMAGE_PATCHES: images.patches if images else 0,
        Unit.RANK_PATCHES: rank * patches,
        Unit.PIXELS: n_images * images.numbers * batch.grad_accum if images else 0,
    }
