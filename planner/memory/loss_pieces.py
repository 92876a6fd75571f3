"""How many pieces a loss in pieces is cut into, and what it makes beside them."""

from __future__ import annotations

from planner.arrays import ceil_div, maximum, minimum, where
from planner.domain.recipe import Number
from planner.memory.activations import activations
from planner.memory.runtime import context_bytes
from planner.memory.weights import (
    adapter_bytes,
    quantization_constant_bytes,
    quantized_weight_bytes,
    saved_module_bytes,
    unquantized_weight_bytes,
)
from planner.program.job import Job
from planner.units import GIB, MIB

# Pieces by the rule "eighths".  Source: torchtune 0.6 modules/loss/ce_chunked_output_loss.py.
_PIECES = 8
# The rule "free_memory".  Source: unsloth_zoo 2026.10.9 fused_losses/cross_entropy_loss.py:220-311.
_PLANNED_BYTES_PER_LOGIT = 16
_MOST_PLANNED_BYTES = 4 * GIB
_PIECES_STEP = 4
# Where nothing is free the job does not fit, whatever the plan.
_LEAST_PLANNED_BYTES = 64 * MIB


def piece_tokens(job: Job) -> Number:
    """Tokens in one piece of a loss in pieces.

    Formula: tokens / 8; or, by free memory, tokens / n, where n is 1 or the least multiple of four at which 16 bytes a logit are
    within what the loss allows itself, less the gradient of the head's input.
    Source: the stack's ``loss_pieces`` switch.
    """
    tokens = job.tokens
    if job.stack.loss_pieces == "eighths":
        return ceil_div(tokens, _PIECES)
    gradient, budget = head_input_gradient_bytes(job), _planned_bytes(job)
    budget = where(gradient < budget, budget - gradient, budget)
    planned = tokens * job.model.vocab_size * _PLANNED_BYTES_PER_LOGIT
    pieces = where(planned <= budget, 1, _PIECES_STEP * ceil_div(planned, _PIECES_STEP * budget))
    return ceil_div(tokens, minimum(pieces, tokens))


def _planned_bytes(job: Job) -> Number:
    """What a loss by free memory allows itself: half of what is free when the first forward ends, at most 4 GiB.

    Formula: the card less its context, the weights and adapters, and the most that the forward held, which stays cached.
    Source: unsloth_zoo 2026.10.9 tiled_mlp.py:78-94 (``mem_get_info``), fused_losses/cross_entropy_loss.py:228-254.
    """
    hardware = job.hardware
    visible = hardware.gpu.visible_memory_bytes
    if visible is None:
        return _MOST_PLANNED_BYTES
    weights = quantized_weight_bytes(job) + quantization_constant_bytes(job) + unquantized_weight_bytes(job)
    amounts = activations(job)
    taken = context_bytes(job) + weights + adapter_bytes(job) + saved_module_bytes(job) + amounts.kept + amounts.forward_extra
    half = (visible - hardware.gpu_reserved_bytes - taken) // 2
    return minimum(maximum(half, _LEAST_PLANNED_BYTES), _MOST_PLANNED_BYTES)


def differentiates_pieces(job: Job) -> bool:
    """Whether each piece of a loss in pieces is differentiated as soon as it is computed, in the forward pass, by compiled code.

    Source: unsloth_zoo 2026.10.9 fused_losses/cross_entropy_loss.py:450-550 (``torch.func.grad_and_value``, ``torch.compile``);
    what torch 2.13's compiler makes of it has one tensor of logits, in the compute dtype, which the gradient is written into.
    """
    return job.stack.loss_pieces == "free_memory"


def head_input_gradient_bytes(job: Job) -> Number:
    """Gradient of what the head reads, of all tokens.

    Source: unsloth_zoo 2026.10.9 fused_losses/cross_entropy_loss.py:381 (``grad_inputs``).
    """
    return job.tokens * job.model.hidden_size * job.regime.compute
