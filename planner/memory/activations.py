"""Bytes of activations: what blocks keep for backward and what one block needs while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from planner.anatomy.block import BlockBytes, block_bytes
from planner.anatomy.norms import norm_amounts
from planner.arrays import maximum
from planner.domain.model import BlockSpec
from planner.domain.recipe import Number
from planner.memory.head import head_gradient_bytes
from planner.program.job import Job


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """``count`` equal layers for one micro-batch on one GPU, in bytes.

    ``kept``: between forward and backward, by each.  ``forward_extra``: most that one adds while the forward runs.
    ``backward_extra``: most that one adds in backward, recomputation included and weight gradients left out.  ``growing_extra``:
    the same with the gradients it has made by then.  ``adding_extra``: with the one that is being added to an existing one.
    ``gradients``: weight gradients of each.
    """

    count: int
    kept: Number
    forward_extra: Number
    backward_extra: Number
    growing_extra: Number
    adding_extra: Number
    gradients: Number


@dataclass(frozen=True, slots=True)
class Activations:
    """Saved and transient activations of all layers, in the order of the forward pass.

    ``layers``: all runs of equal layers.
    ``shared``: bytes that stay for all layers, until the backward of the first one.  ``kept``: bytes saved between forward
    and backward over all layers; ``one_layer``: the most that one layer keeps.
    ``forward_extra``: most bytes that one layer adds while the forward runs.  ``backward_extra``: the same in backward, weight
    gradients left out; ``adding_extra``: with the weight gradient that is being added to an existing one.
    """

    layers: tuple[LayerBytes, ...]
    shared: Number
    kept: Number
    one_layer: Number
    forward_extra: Number
    backward_extra: Number
    adding_extra: Number


def activations(job: Job) -> Activations:
    """Saved and transient activations of all layers.

    With checkpointing: every layer's input stays, and one layer is recomputed in backward.  Matrices of int8 bases, and
    4-bit ones of older bitsandbytes, hold their inputs in spite of non-reentrant checkpointing.  Without checkpointing:
    everything each layer saves stays.
    Every n-th layer: layers 0, n, 2n, ... the first way, all others the second.
    Source: transformers 5.23 modeling_layers.py GradientCheckpointingLayer, modeling_utils.py _set_gradient_checkpointing
    (``every_n_layers``); torch 2.13 utils/checkpoint.py.
    Ignored: which of several kinds of alternating layers is recomputed; they count as if one kind followed the other.
    """
    groups: list[list[LayerBytes]] = []
    first = 0
    for group in job.model.groups:
        groups.append([_layer_bytes(job, group.block, run) for run in _runs(job, first, group.count)])
        first += group.count
    layers = tuple(layer for group in groups for layer in group)
    shared = rotary_table_bytes(job) + staged_input_bytes(job)
    return Activations(
        layers=layers,
        shared=shared,
        kept=shared + sum(layer.count * layer.kept for layer in layers),
        one_layer=maximum(0, *(layer.kept for layer in layers)),
        forward_extra=_most(groups, lambda layer: layer.forward_extra),
        backward_extra=_most(groups, lambda layer: layer.backward_extra),
        adding_extra=_most(groups, lambda layer: maximum(layer.adding_extra, layer.backward_extra)),
    )


def _most(groups: list[list[LayerBytes]], extra: Callable[[LayerBytes], Number]) -> Number:
    """Most that a layer adds to what the layers of its group up to it keep, less what all of them keep.

    ``groups``: for each group of layers of one kind, its runs of layers that are treated alike.
    """
    most: Number = 0
    for group in groups:
        after: Number = 0
        for layer in reversed(group):
            most = maximum(most, extra(layer) - after)
            after = after + layer.count * layer.kept
    return most


def rotary_table_bytes(job: Job) -> Number:
    """Cosines and sines that turn queries and keys: made once a pass, for one sample, and read by all layers.

    Formula: 2 * positions * features of a head in the dtype of the embeddings.
    Source: transformers 5.23 models/llama/modeling_llama.py LlamaRotaryEmbedding.forward, LlamaModel.forward.
    Ignored: heads that are turned in part only, whose tables are narrower; the second pair of models that turn layers with a
    window by another base; that older Transformers keep tables of all positions in every layer.
    """
    heads = [group.block.attention.head_dim for group in job.model.groups if group.block.attention.position == "rope"]
    return 2 * job.recipe.batch.seq_len * max(heads, default=0) * job.regime.outside


def staged_input_bytes(job: Job) -> Number:
    """Block inputs that lie on the GPU although checkpointing moves them to the host, beside that of the recomputed layer.

    Formula: switch ``offloaded_inputs_kept`` * tokens * hidden in the stream's dtype.  Source: the switch's.
    Ignored: tensors too small to be moved (2 MiB in Unsloth), below 1 % of a peak; no second staging buffer on a full card.
    """
    recipe = job.recipe
    if recipe.offload != "activations" or not recipe.gradient_checkpointing:
        return 0
    return job.stack.offloaded_inputs_kept * job.tokens * job.model.hidden_size * job.regime.residual


@dataclass(frozen=True, slots=True)
class _Run:
    """``count`` layers that follow each other, recomputed in backward or not; ``is_first`` if their input needs no gradient."""

    count: int
    rebuilt: bool
    is_first: bool = False


def _runs(job: Job, first: int, count: int) -> list[_Run]:
    """How checkpointing divides layers ``first`` to ``first + count - 1``."""
    recipe = job.recipe
    if not recipe.rebuilds_some:
        bare = int(first == 0 and not job.input_needs_gradient)
        runs = [_Run(bare, False, True), _Run(count - bare, recipe.gradient_checkpointing)]
        return [run for run in runs if run.count]
    rebuilt = (index % recipe.checkpoint_every == 0 for index in range(first, first + count))
    return [_Run(sum(1 for _ in run), again) for again, run in groupby(rebuilt)]


def _layer_bytes(job: Job, kind: BlockSpec, run: _Run) -> LayerBytes:
    block = block_bytes(job.view(kind, is_first=run.is_first), job.tokens, job.recipe.batch.seq_len)
    peaks = block.backward_peak, block.growing_peak, block.adding_peak
    if run.rebuilt:
        stays, forward, extras = _checkpointed(job, block, peaks)
    else:
        stays, forward = block.saved, block.forward_peak - block.saved
        extras = [peak - block.saved for peak in peaks]
    if job.recipe.offload == "activations":
        stays = 0 * stays
    backward, growing, adding = extras
    return LayerBytes(run.count, stays, forward, backward, growing, adding, block.gradients)


def _checkpointed(job: Job, block: BlockBytes, peaks: tuple[Number, ...]) -> tuple[Number, Number, list[Number]]:
    """(kept, forward extra, backward extras) of one checkpointed layer whose backward has the ``peaks``.

    The stored input is the first norm's fp32 input itself when the stream is fp32 (unless it keeps the centred one), so the
    recomputed layer does not pay for it twice.
    Where parts of a layer are wrapped one by one, the recomputed layer shares their stored inputs.
    Ignored: that then only one part is recomputed at a time.
    """
    shared = (block.boundary if block.keeps_input else 0) + block.stored - block.boundary
    if job.recipe.offload == "activations":
        # What comes back from the host is the recomputed layer's own.
        shared = 0 * shared
    held: Number = 0 if job.recipe.checkpoint_reentrant else block.context_held
    # While the layer is recomputed, the gradient of its output is already there; its backward counts that gradient itself.
    # What int8 contexts hold from the first forward serves the backward; the recomputation makes another set until it ends.
    again = block.forward_peak if job.recipe.checkpoint_reentrant else block.rebuilt_peak + block.early_gradients
    extras = [maximum(peak - held, again + block.boundary) - shared for peak in peaks]
    # The first forward keeps nothing for autograd: what one step makes goes when the next has read it.
    forward = block.plain_peak + block.returned
    return block.stored + held, forward, [maximum(extra, 0) for extra in extras]


def uncounted_activation_bytes(job: Job, amounts: Activations) -> Number:
    """Saved tensors that the formulas of a layer do not list, as a calibration found them: 0 without one.

    Formula: coefficient ``activation_share`` of what is kept and of the larger extra of one block.
    Source: :class:`planner.domain.coefficients.Coefficients`.
    Ignored: that what is kept shrinks in backward.
    """
    return job.coefficients.activation_share * (amounts.kept + maximum(amounts.forward_extra, amounts.backward_extra))


def attention_mask_bytes(job: Job) -> Number:
    """Bytes of the attention masks that layers share: one element per pair of positions and sample.

    Eager attention adds a mask in the dtype of the embeddings, another one for layers with a window.
    SDPA has one where the batch is padded or the sequence reaches
    the window of some layers, boolean or in that dtype (switch ``sdpa_mask``); what a layer makes of it is in its ledger.
    Where it is boolean, layers with a window and those without have a mask each.  Flash attention has none.
    Source: transformers 5.23 masking_utils.py sdpa_mask, models/gemma3/modeling_gemma3.py ``causal_mask_mapping``; 4.37
    modeling_attn_mask_utils.py _prepare_4d_causal_attention_mask_for_sdpa.
    """
    batch, recipe = job.recipe.batch, job.recipe
    if recipe.attention == "flash2":
        return 0
    pairs = batch.micro_batch * batch.seq_len * batch.seq_len
    blocks = [group.block for group in job.model.groups]
    if recipe.attention == "eager":
        return pairs * job.regime.outside * len({block.attention.window_tokens for block in blocks})
    element = {"bool": 1, "stream": job.regime.outside, "none": 0}[job.stack.sdpa_mask]
    windows = {job.needs_mask(block) for block in blocks if batch.is_padded or job.needs_mask(block)}
    return pairs * element * len(windows)


def mask_is_held(job: Job) -> bool:
    """Whether the shared mask outlives the forward: as an argument of checkpointed layers, or saved as it is by fused attention.

    Source: torch 2.13 utils/checkpoint.py keeps the arguments; derivatives.yaml, _scaled_dot_product_efficient_attention saves
    ``attn_bias``.  Adding a mask to eager scores saves nothing.
    """
    recipe, regime = job.recipe, job.regime
    shared = recipe.attention == "sdpa" and job.stack.sdpa_mask == "stream" and regime.outside == regime.compute
    return recipe.gradient_checkpointing or shared


def embedding_saved_bytes(job: Job) -> Number:
    """Bytes that what follows the token table keeps for backward: a norm of the embeddings, a mask of their dropout.

    Formula: a norm's saved bytes per token where the model has one, one byte per feature for a dropout mask.
    Source: transformers 5.23 models/bloom/modeling_bloom.py word_embeddings_layernorm, models/gpt2/modeling_gpt2.py drop.
    """
    model = job.model
    if not job.input_needs_gradient:
        return 0
    kept: Number = model.hidden_size if model.embedding_dropout else 0
    if not model.embedding_norm:
        return job.tokens * kept
    amounts = norm_amounts(job.view(model.groups[0].block), model.final_norms[0], job.regime.outside)
    return job.tokens * (kept + amounts.saves) + amounts.fixed_saves


def final_norm_bytes(job: Job) -> Number:
    """Bytes that the final norm keeps for backward, and those that a trained head keeps of its input.

    Source: transformers 5.23 models/llama/modeling_llama.py LlamaModel.forward, LlamaRMSNorm; torch 2.13 derivatives.yaml.
    """
    regime, hidden = job.regime, job.model.hidden_size
    kept: Number = hidden * regime.compute if head_gradient_bytes(job) else 0
    if not job.model.final_norms:
        return job.tokens * kept
    amounts = norm_amounts(job.view(job.model.groups[0].block), job.model.final_norms[-1], regime.residual)
    return job.tokens * (amounts.saves + kept) + amounts.fixed_saves


def norm_output_bytes(job: Job) -> Number:
    """Bytes of the final norm's output and input, which the program holds on to until the forward returns.

    Formula: tokens * hidden in the dtypes of the norm's output and of the stream; an fp32 input is what the norm keeps already.
    Source: transformers 5.23 models/llama/modeling_llama.py LlamaForCausalLM.forward (``outputs.last_hidden_state``).
    """
    held = job.regime.residual if job.regime.residual < 4 else 0
    return job.tokens * job.model.hidden_size * (job.regime.norm_out + held)
