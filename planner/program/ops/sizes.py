"""How many of each unit a job has."""

from __future__ import annotations

from dataclasses import replace

from planner.arrays import ceil_div, minimum
from planner.domain.mixer_specs import DELTA_CHUNK_TOKENS, SCAN_BLOCK_TOKENS
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Scenario
from planner.program.head.loss_pieces import (
    HEAD_PIECE_TOKENS,
    completion_tokens,
    fused_logits,
    n_pieces,
    piece_tokens,
)
from planner.program.job import Job
from planner.program.ops.tensors import Unit
from planner.program.ops.unit_names import EVALUATED
from planner.program.position_tables import table_rows
from planner.units import KIB, MIB

FILLED_ROWS = 8
"""Rows of each expert are filled up to a multiple of so many."""


def unit_values(job: Job) -> dict[Unit, Number]:
    """The number of each unit in one micro-batch, and in one that is evaluated (as large, if not said)."""
    trained, n_samples = _units_of(job), job.scenario.run.eval_micro_batch
    evaluated = trained
    if n_samples is not None:
        recipe = replace(job.recipe, batch=replace(job.recipe.batch, micro_batch=n_samples))
        evaluated = _units_of(replace(job, scenario=replace(job.scenario, recipe=recipe)))
    evaluated = {EVALUATED[unit]: value for unit, value in evaluated.items() if unit in EVALUATED}
    return trained | evaluated | _generated_units(job) | {Unit.WORKSPACE: _workspace_bytes(job)}


def _workspace_bytes(job: Job) -> int:
    """cuBLAS's: 32 MiB from compute capability 9.0 on, else 8.125 MiB.

    Source: torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp parseChosenWorkspaceSize.
    """
    major = job.hardware.gpu.compute_capability.partition(".")[0]
    return 32 * MIB if major.isdecimal() and int(major) >= 9 else 2 * 4 * MIB + 8 * 16 * KIB


def _units_of(job: Job) -> dict[Unit, Number]:
    batch = job.recipe.batch
    tokens = batch.rows * batch.seq_len
    length = tokens if job.stack.joins_rows(job.recipe) else batch.seq_len
    units = batch_units(job.scenario, tokens, length, tokens * length)
    return units | {
        Unit.PIECE_TOKENS: piece_tokens(job),
        Unit.PIECE_LOGITS: fused_logits(job)[1],
        Unit.COMPLETION_TOKENS: batch.rows * completion_tokens(job),
        Unit.COMPLETION_LENGTH: completion_tokens(job),
        Unit.TABLE_ROWS: table_rows(job),
        Unit.PIXELS: units[Unit.PIXELS] * batch.grad_accum,
    }


def batch_units(scenario: Scenario, tokens: Number, length: Number, pairs: Number) -> dict[Unit, Number]:
    """Units of a micro-batch of ``tokens`` in samples of ``length``, with so many ``pairs``."""
    recipe = scenario.recipe
    rank, rows, images = recipe.adapter.rank if recipe.adapter else 0, recipe.batch.rows, recipe.batch.images
    n_images: Number = rows * images.per_sample if images else 0
    patches: Number = n_images * images.patches if images else 0
    return {
        Unit.ONE: 1,
        Unit.TOKENS: tokens,
        Unit.PAIRS: pairs,
        Unit.LENGTH: length,
        Unit.SHIFTED_TOKENS: tokens - tokens / length,
        Unit.SHIFTED_LENGTH: length - 1,
        Unit.REAL_TOKENS: minimum(tokens, length + (rows - 1) * recipe.batch.tokens_per_sample),
        Unit.RANK: rank,
        Unit.RANK_TOKENS: rank * tokens,
        Unit.SINK_PAIRS: pairs + tokens,
        Unit.LENGTH_PAIRS: length * length,
        Unit.HEAD_PIECES: ceil_div(length, HEAD_PIECE_TOKENS),
        Unit.PIECES: n_pieces(scenario, tokens),
        Unit.ROWS: rows,
        Unit.PATCHES: patches,
        Unit.IMAGE_PATCHES: images.tile_patches if images else 0,
        Unit.RANK_PATCHES: rank * patches,
        Unit.PATCH_PAIRS: patches * images.tile_patches if images else 0,
        Unit.IMAGE_PAIRS: images.tile_patches**2 if images else 0,
        Unit.PATCH_SQUARES: patches * patches,
        Unit.IMAGE_TOKENS: n_images * images.tokens if images else 0,
        Unit.CUT_TOKENS: (images.tiles - 1) * images.tile_tokens if images else 0,
        Unit.LINE_TOKENS: images.tokens - images.tile_tokens if images else 0,
        Unit.PIXELS: n_images * images.numbers if images else 0,
        Unit.SCAN_BLOCKS: tokens / length * ceil_div(length, SCAN_BLOCK_TOKENS),
        **_chunks(tokens, length),
        **_expert_rows(scenario, tokens),
    }


def _chunks(tokens: Number, length: Number) -> dict[Unit, Number]:
    chunks = ceil_div(length, DELTA_CHUNK_TOKENS)
    rows = tokens / length * DELTA_CHUNK_TOKENS
    return {
        Unit.CHUNKS: chunks,
        Unit.CHUNK_ROWS: rows,
        Unit.CHUNK_TOKENS: rows * chunks,
        Unit.LATER_CHUNK_TOKENS: rows * (chunks - 1),
        Unit.CHUNK_SQUARES: rows * chunks * chunks,
    }


def _expert_rows(scenario: Scenario, tokens: Number) -> dict[Unit, Number]:
    """Rows of the experts of one GPU, to which tokens are taken to be spread evenly: as many as it sends.

    Formula: ``tokens x top_k``; in torchtitan of 2025 8 more for each expert, in whole eights.
    Source: torchtitan e347b1e5e models/moe/utils.py _permute (``TOKEN_GROUP_ALIGN_SIZE_M``).
    """
    blocks = [group.block for group in scenario.model.groups if group.block.mlp.n_experts]
    if not blocks:
        return {Unit.ARRIVED_ROWS: 0, Unit.EXPERT_ROWS: 0}
    mlp = blocks[0].mlp
    rows = tokens * mlp.top_k
    if scenario.stack.mixture_code != "torchtitan-2025":
        return {Unit.ARRIVED_ROWS: rows, Unit.EXPERT_ROWS: rows}
    experts = mlp.n_experts // scenario.recipe.parallel.experts
    filled = FILLED_ROWS * ceil_div(rows + FILLED_ROWS * experts, FILLED_ROWS)
    return {Unit.ARRIVED_ROWS: rows + 1, Unit.EXPERT_ROWS: filled}


def _generated_units(job: Job) -> dict[Unit, Number]:
    """Sizes of the batch that is generated at once; the last token of a sequence is never cached."""
    batch, completion = job.recipe.batch, completion_tokens(job)
    rows = batch.rows * job.recipe.generation_micro_steps
    rank = job.recipe.adapter.rank if job.recipe.adapter else 0
    prompt, cached = batch.seq_len - completion, batch.seq_len - 1
    windows = [group.block.attention.window_tokens for group in job.model.groups]
    window = max((each for each in windows if each is not None), default=0)
    return {
        Unit.PROMPT_TOKENS: rows * prompt,
        Unit.PROMPT_PAIRS: rows * prompt * prompt,
        Unit.PROMPT_LENGTH: prompt,
        Unit.PROMPT_LENGTH_PAIRS: prompt * prompt,
        Unit.PROMPT_RANK_TOKENS: rank * rows * prompt,
        Unit.GENERATED_ROWS: rows,
        Unit.GENERATED_RANK_ROWS: rank * rows,
        Unit.CACHED_TOKENS: rows * cached,
        Unit.CACHED_SINK_TOKENS: rows * (cached + 1),
        Unit.WINDOW_TOKENS: rows * minimum(cached, window),
        Unit.SCORED_TOKENS: rows * batch.seq_len,
        Unit.SCORED_PAIRS: rows * batch.seq_len * batch.seq_len,
        Unit.SCORED_SINK_PAIRS: rows * batch.seq_len * (batch.seq_len + 1),
    }
