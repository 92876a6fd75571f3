"""How many tokens are in one piece of a head and loss that run in pieces."""

from __future__ import annotations

from planner.arrays import ceil_div, ceil_pow2, maximum, minimum, where
from planner.domain.recipes.recipe import Number
from planner.program.head.losses import EIGHTHS, cuts_logits
from planner.program.head.tiles import TILE_TOKENS
from planner.program.job import Job
from planner.program.load import load_whole
from planner.program.ops.tensors import ELEMENT_BYTES, Unit
from planner.program.request_stream import RequestStream
from planner.units import GIB, MIB

# Source: unsloth_zoo 2026.10.9 fused_losses/cross_entropy_loss.py:220-311.
_PLANNED_BYTES_PER_LOGIT = 16
_MOST_PLANNED_BYTES = 4 * GIB
_PIECES_STEP = 4
# Where nothing is free the job does not fit, whatever the plan.
_LEAST_PLANNED_BYTES = 64 * MIB


def piece_tokens(job: Job) -> Number:
    """Tokens of one piece; all where there are no pieces.

    Liger: the next power of two of tokens / ceil(vocabulary / hidden).  Source: Liger-Kernel 0.5
    ops/fused_linear_cross_entropy.py.
    """
    if job.recipe.rollout is not None:
        return minimum(job.recipe.batch.rows * completion_tokens(job), TILE_TOKENS)
    if job.recipe.is_preference or (job.recipe.loss == "chunked" and job.stack.loss_pieces == "tiles"):
        return minimum(job.recipe.batch.rows * job.recipe.batch.seq_len, TILE_TOKENS)
    tokens, model, loss = job.recipe.batch.rows * job.recipe.batch.seq_len, job.model, job.recipe.loss
    if loss == "liger":
        return minimum(ceil_pow2(ceil_div(tokens, ceil_div(model.vocab_size, model.hidden_size))), tokens)
    if loss == "chunked" and job.stack.loss_pieces == "free_memory":
        return _by_free_memory(job, tokens)
    return ceil_div(tokens, EIGHTHS) if loss == "chunked" or cuts_logits(job.stack) else tokens


def completion_tokens(job: Job) -> Number:
    """Tokens of a sequence that were generated; the prompt has one token at least."""
    if job.recipe.rollout is None:
        return 0
    return maximum(minimum(job.recipe.rollout.completion_tokens, job.recipe.batch.seq_len - 1), 1)


def _by_free_memory(job: Job, tokens: Number) -> Number:
    """Tokens / n, where n is 1 or the least multiple of 4 at which 16 bytes a logit are within a budget.

    That is half of what is free when the forward ends, at most 4 GiB, less the gradient of the head's input.
    Ignored: the context and what the forward holds, which matter on a card that is nearly full.
    """
    gradient, budget = (
        tokens * job.model.hidden_size * ELEMENT_BYTES[job.recipe.numerics.compute_dtype],
        _planned_bytes(job),
    )
    budget = where(gradient < budget, budget - gradient, budget)
    planned = tokens * job.model.vocab_size * _PLANNED_BYTES_PER_LOGIT
    pieces = where(planned <= budget, 1, _PIECES_STEP * ceil_div(planned, _PIECES_STEP * budget))
    return ceil_div(tokens, minimum(pieces, tokens))


def _planned_bytes(job: Job) -> Number:
    """Half of what weights and adapters leave free, at most 4 GiB (unsloth_zoo 2026.10.9 tiled_mlp.py:78)."""
    visible = job.hardware.gpu.visible_memory_bytes
    if visible is None:
        return _MOST_PLANNED_BYTES
    stream = RequestStream()
    load_whole(stream, job)
    rank = job.recipe.adapter.rank if job.recipe.adapter else 0
    counts: dict[Unit, Number] = {Unit.ONE: 1, Unit.RANK: rank}
    taken: Number = 0
    for event in stream.events:
        slot = event if event >= 0 else ~event
        n_bytes = stream.unit_bytes[slot] * counts[Unit(stream.units[slot])]
        taken = taken + (n_bytes if event >= 0 else -n_bytes)
    half = (visible - job.hardware.gpu_reserved_bytes - taken) // 2
    return minimum(maximum(half, _LEAST_PLANNED_BYTES), _MOST_PLANNED_BYTES)
