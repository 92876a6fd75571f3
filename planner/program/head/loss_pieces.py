"""How many tokens are in one piece of a head and loss that run in pieces."""

from __future__ import annotations

from planner.arrays import ceil_div, ceil_pow2, maximum, minimum, where
from planner.domain.recipes.recipe import Number
from planner.program.head.distilled import PIECE_TOKENS
from planner.program.head.losses import EIGHTHS, cuts_logits
from planner.program.head.tiles import TILE_TOKENS
from planner.program.job import Job
from planner.program.ops.tensors import ELEMENT_BYTES
from planner.units import GIB

# Source: unsloth_zoo 2026.10.9 fused_losses/cross_entropy_loss.py:220-311.
_PLANNED_BYTES_PER_LOGIT = 16
_PLANNED_BYTES = 4 * GIB
_PIECES_STEP = 4

HEAD_PIECE_TOKENS = 128
"""Source: litgpt 0.5.13 finetune/lora.py fit (``lm_head_chunk_size``)."""


def piece_tokens(job: Job) -> Number:
    """Tokens of one piece; all where there are no pieces.

    Liger: the next power of two of tokens / ceil(vocabulary / hidden).  Source: Liger-Kernel 0.5
    ops/fused_linear_cross_entropy.py.
    """
    if job.recipe.rollout is not None:
        return minimum(job.recipe.batch.rows * completion_tokens(job), TILE_TOKENS)
    if job.recipe.task == "gkd":
        return minimum(job.recipe.batch.rows * job.recipe.batch.seq_len, PIECE_TOKENS)
    if job.recipe.has_own_loss or (job.recipe.loss == "chunked" and job.stack.loss_pieces == "tiles"):
        return minimum(job.recipe.batch.rows * job.recipe.batch.seq_len, TILE_TOKENS)
    tokens, model, loss = job.recipe.batch.rows * job.recipe.batch.seq_len, job.model, job.recipe.loss
    if loss == "liger":
        return minimum(ceil_pow2(ceil_div(tokens, ceil_div(model.vocab_size, model.hidden_size))), tokens)
    if loss == "chunked" and job.stack.loss_pieces == "budget":
        return _in_planned_bytes(job, tokens)
    return ceil_div(tokens, EIGHTHS) if loss == "chunked" or cuts_logits(job.stack) else tokens


def completion_tokens(job: Job) -> Number:
    """Tokens of a sequence that were generated; the prompt has one token at least."""
    if job.recipe.rollout is None:
        return 0
    return maximum(minimum(job.recipe.rollout.completion_tokens, job.recipe.batch.seq_len - 1), 1)


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
