"""How many of each unit a job has."""

from __future__ import annotations

from planner.domain.recipe import Number
from planner.program.job import Job
from planner.program.loss_pieces import piece_tokens
from planner.program.tensors import Unit


def unit_values(job: Job) -> dict[Unit, Number]:
    """The number of each unit in one micro-batch of ``job``."""
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
        Unit.PATCHES: patches,
        Unit.IMAGE_PATCHES: images.patches if images else 0,
        Unit.RANK_PATCHES: rank * patches,
        Unit.PIXELS: n_images * images.numbers * batch.grad_accum if images else 0,
    }
