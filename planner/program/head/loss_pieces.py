"""How many tokens are in one piece of a head and loss that run in pieces."""

from __future__ import annotations

from planner.arrays import ceil_div, ceil_pow2, maximum, minimum, where
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Number
from planner.domain.scenario import Scenario
from planner.program.head.distilled import PIECE_TOKENS
from planner.program.head.losses import EIGHTHS, TILE_COLUMNS, cuts_logits
from planner.program.head.row_pieces import PIECE_ROWS, of_rows
from planner.program.head.tiles import TILE_TOKENS
from planner.program.job import Job
from planner.program.ops.tensors import ELEMENT_BYTES
from planner.units import GIB

# Source: unsloth_zoo 2026.10.9 fused_losses/fused_linear.py:58-175.
_FEWEST_LOGITS, _FEWEST_ROWS, _MOST_ROWS, _MOST_LOGITS = 512 * 151_936, 512, 4096, 2 * GIB // 4
_SMALL_CARD_BYTES = 24.5 * GIB
_FIRST_WITH_TILES = 8
# The same, fused_losses/cross_entropy_loss.py:220-311.
_PLANNED_BYTES_PER_LOGIT = 16
_PLANNED_BYTES = 4 * GIB
_PIECES_STEP = 4

HEAD_PIECE_TOKENS = 128
"""Source: litgpt 0.5.13 finetune/lora.py fit (``lm_head_chunk_size``)."""


def piece_tokens(job: Job) -> Number:
    """Tokens of one piece; all where there are no pieces."""
    if job.recipe.rollout is not None:
        return minimum(job.recipe.batch.rows * completion_tokens(job), TILE_TOKENS)
    if job.recipe.task == "gkd":
        return minimum(job.recipe.batch.rows * job.recipe.batch.seq_len, PIECE_TOKENS)
    if job.recipe.has_own_loss or (job.recipe.loss == "chunked" and job.stack.loss_pieces == "tiles"):
        return minimum(job.recipe.batch.rows * job.recipe.batch.seq_len, TILE_TOKENS)
    tokens, model, loss = job.recipe.batch.rows * job.recipe.batch.seq_len, job.model, job.recipe.loss
    if loss == "liger":
        return _liger_piece_tokens(model, tokens)
    if of_rows(job.recipe, job.stack):
        return minimum(tokens, PIECE_ROWS)
    if loss == "chunked" and job.stack.loss_pieces == "budget":
        return fused_logits(job)[0] if job.recipe.adapter else _in_planned_bytes(job, tokens)
    return ceil_div(tokens, EIGHTHS) if loss == "chunked" or cuts_logits(job.stack) else tokens


def n_pieces(scenario: Scenario, tokens: Number) -> Number:
    """Pieces in which Liger or TRL computes the loss of ``tokens``; elsewhere those of torchtune."""
    if of_rows(scenario.recipe, scenario.stack):
        return ceil_div(tokens, PIECE_ROWS)
    if scenario.recipe.loss != "liger":
        return EIGHTHS
    return ceil_div(tokens, _liger_piece_tokens(scenario.model, tokens))


def mean_piece_tokens(scenario: Scenario, tokens: Number) -> Number:
    """Tokens of each piece that the program counts, which have all ``tokens`` together."""
    return tokens / (n_pieces(scenario, tokens) if scenario.recipe.loss == "liger" else EIGHTHS)


def _liger_piece_tokens(model: ModelSpec, tokens: Number) -> Number:
    """The next power of two of tokens / ceil(vocabulary / hidden).

    Source: Liger-Kernel 0.5 ops/fused_linear_cross_entropy.py.
    """
    return minimum(ceil_pow2(ceil_div(tokens, ceil_div(model.vocab_size, model.hidden_size))), tokens)


def completion_tokens(job: Job) -> Number:
    """Tokens of a sequence that were generated; the prompt has one token at least."""
    if job.recipe.rollout is None:
        return 0
    return maximum(minimum(job.recipe.rollout.completion_tokens, job.recipe.batch.seq_len - 1), 1)


def fused_logits(job: Job) -> tuple[Number, Number]:
    """Tokens of one piece of a loss that is fused with a frozen head, and logits that it holds at a time.

    Up to 4,096 tokens in tiles of 16,384 words on cards up to 24.5 GiB, and elsewhere from 4,096 tokens on.
    Else all words of the power of two below tokens x features / vocabulary, from 512 on.  The last token of
    a sample has no label.  Ignored: that half of what is free counts, where that is less than 2 GiB.
    Source: unsloth_zoo 2026.10.9 fused_losses/fused_linear.py _ce_impl, _tiled_layout, fused_linear_rows.
    """
    words, gpu = job.model.vocab_size, job.hardware.gpu
    kept = maximum(job.recipe.batch.rows * (job.recipe.batch.seq_len - 1), 1)
    fewest = minimum(maximum(_floor_pow2(_FEWEST_LOGITS // words), _FEWEST_ROWS), _MOST_ROWS)
    wanted = maximum(_floor_pow2(kept * job.model.hidden_size // words), fewest)
    rows = minimum(minimum(wanted, minimum(_MOST_ROWS, _MOST_LOGITS // words)), kept)
    major = gpu.compute_capability.partition(".")[0]
    if words <= 2 * TILE_COLUMNS or not major.isdigit() or int(major) < _FIRST_WITH_TILES:
        return rows, rows * words
    is_small = (gpu.visible_memory_bytes or 0) <= _SMALL_CARD_BYTES
    tiled = kept >= (0 if is_small else _MOST_ROWS)
    rows = where(tiled, minimum(kept, _MOST_ROWS), rows)
    return rows, rows * where(tiled, TILE_COLUMNS, words)


def _floor_pow2(number: Number) -> Number:
    """The largest power of two up to a whole number; one half for 0."""
    return ceil_pow2(number + 1) / 2


def _in_planned_bytes(job: Job, tokens: Number) -> Number:
    """Tokens / n, where n is 1 or the least multiple of 4 at which 16 bytes a logit are within 4 GiB,
    less the gradient of the head's input, and twice that of a trained head.

    Ignored: that half of what is free when the forward ends is planned with, where that is less; pieces of
    4 GiB take no more than a layer does.
    """
    n_bytes = ELEMENT_BYTES[job.recipe.numerics.compute_dtype]
    head = 0 if job.recipe.adapter else 2 * job.model.vocab_size
    gradient = (tokens + head) * job.model.hidden_size * n_bytes
    budget = where(gradient < _PLANNED_BYTES, _PLANNED_BYTES - gradient, _PLANNED_BYTES)
    planned = tokens * job.model.vocab_size * _PLANNED_BYTES_PER_LOGIT
    pieces = where(planned <= budget, 1, _PIECES_STEP * ceil_div(planned, _PIECES_STEP * budget))
    return ceil_div(tokens, minimum(pieces, tokens))
