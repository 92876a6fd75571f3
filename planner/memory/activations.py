"""Bytes of activations: what blocks keep for backward and what one block needs while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from planner.anatomy.block import BlockBytes, block_bytes
from planner.anatomy.norms import norm_amounts
from planner.arrays import maximum
from planner.domain.recipe import Number
from planner.memory.job import Job


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes on one GPU for one micro-batch.

    ``kept``: saved between forward and backward over all blocks.  ``forward_extra``: most that one block adds while the forward
    runs.  ``backward_extra``: most that one block adds in backward, recomputation included.  ``one_block``: what the last block
    to run backward still holds of ``kept``.
    """

    kept: Number
    forward_extra: Number
    backward_extra: Number
    one_block: Number


def activations(job: Job) -> Activations:
    """Saved and transient activations of all blocks.

    With checkpointing: every block's input stays, and one block is rebuilt in backward; matrices of int8 bases, and 4-bit ones
    of older bitsandbytes, hold their inputs in spite of non-reentrant checkpointing.  Without: everything each block saves stays.
    Source: transformers 5.23 modeling_layers.py GradientCheckpointingLayer; torch 2.13 utils/checkpoint.py.
    """
    kept: Number = 0
    forward_extra: Number = 0
    backward_extra: Number = 0
    one_block: Number = 0
    for group in job.model.groups:
        block = block_bytes(job.view(group.block), job.tokens, job.recipe.batch.seq_len)
        if job.recipe.gradient_checkpointing:
            stays, forward, backward = _checkpointed(job, block)
        else:
            stays = block.saved
            forward, backward = block.forward_peak - block.saved, block.backward_peak - block.saved
        kept = kept + group.count * stays
        forward_extra = maximum(forward_extra, forward)
        backward_extra = maximum(backward_extra, backward)
        one_block = maximum(one_block, stays)
    if job.recipe.offload == "activations":
        kept = 0 * kept
    return Activations(kept, forward_extra, backward_extra, one_block)


def _checkpointed(job: Job, block: BlockBytes) -> tuple[Number, Number, Number]:
    """(kept, forward extra, backward extra) of one checkpointed block.

    The stored input is the first norm's fp32 input itself when the stream is fp32, so the rebuilt block does not pay for it
    twice.  Where parts of a layer are wrapped one by one, the rebuilt layer shares their stored inputs.
    Ignored: that then only one part is rebuilt at a time.
    """
    regime = job.regime
    shared = (block.boundary if regime.residual == 4 else 0) + block.stored - block.boundary
    held: Number = 0 if job.recipe.checkpoint_reentrant else block.context_held
    # While the block is rebuilt, the gradient of its output is already there; its backward counts that gradient itself.
    backward = maximum(block.backward_peak, block.forward_peak + block.boundary) - shared - held
    # The first forward keeps nothing for autograd, but its widest moment has the same live tensors.
    forward = maximum(0, block.forward_peak - block.saved) + _widest_live(job)
    return block.stored + held, forward, maximum(backward, 0)


def _widest_live(job: Job) -> Number:
    """Bytes alive in the MLP of a block that saves nothing: gate, up and product."""
    mlp_width = max(group.block.mlp.active_width * (3 if group.block.mlp.gated else 2) for group in job.model.groups)
    return job.tokens * mlp_width * job.regime.linear_out


def uncounted_activation_bytes(job: Job, amounts: Activations) -> Number:
    """Saved tensors that the ledger does not list, as a calibration found them: 0 without one.

    Formula: coefficient ``activation_share`` of what is kept and of the larger extra of one block.
    Source: :class:`planner.domain.coefficients.Coefficients`.
    Ignored: that what is kept shrinks in backward.
    """
    return job.coefficients.activation_share * (amounts.kept + maximum(amounts.forward_extra, amounts.backward_extra))


def attention_mask_bytes(job: Job) -> Number:
    """Bytes of the attention mask that all layers share: one element per pair of positions and sample.

    Eager attention adds a mask in the stream's dtype.  SDPA has one where the batch is padded, boolean or in the dtype of the
    embeddings (switch ``sdpa_mask``); what layers make of it is in the ledger of a layer.  Flash attention has none.
    Source: transformers 5.23 masking_utils.py sdpa_mask; 4.37
    modeling_attn_mask_utils.py _prepare_4d_causal_attention_mask_for_sdpa.
    """
    batch, recipe = job.recipe.batch, job.recipe
    if recipe.attention == "flash2":
        return 0
    pairs = batch.micro_batch * batch.seq_len * batch.seq_len
    if recipe.attention == "eager":
        return pairs * job.regime.residual
    element = {"bool": 1, "stream": job.regime.outside, "none": 0}[job.stack.sdpa_mask]
    return pairs * element if batch.is_padded else 0


def mask_is_held(job: Job) -> bool:
    """Whether the shared mask outlives the forward: as an argument of checkpointed layers, or saved as it is by fused attention.

    Source: torch 2.13 utils/checkpoint.py keeps the arguments; derivatives.yaml, _scaled_dot_product_efficient_attention saves
    ``attn_bias``.  Adding a mask to written-out scores saves nothing.
    """
    recipe, regime = job.recipe, job.regime
    shared = recipe.attention == "sdpa" and job.stack.sdpa_mask == "stream" and regime.outside == regime.compute
    return recipe.gradient_checkpointing or shared


def final_norm_bytes(job: Job) -> Number:
    """Bytes that the final norm keeps, and its output, which the head reads.

    Source: transformers 5.23 models/llama/modeling_llama.py LlamaModel.forward, LlamaRMSNorm.
    """
    regime, hidden = job.regime, job.model.hidden_size
    output = hidden * (regime.norm_out + regime.residual)
    if not job.model.final_norms:
        return job.tokens * output
    amounts = norm_amounts(job.view(job.model.groups[0].block), job.model.final_norms[-1], regime.residual)
    return job.tokens * (amounts.saves + output) + amounts.fixed_saves
