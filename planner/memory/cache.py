"""What the caching allocator keeps although no tensor lives there: blocks that are free, and too small for what is asked next.

A free block serves requests of at most its size, and pieces of one segment only join each other.  So memory that one phase needed
in small tensors cannot become the large tensors of a later phase, and is reserved beside them.  The functions here name those
leftovers, each in the phase whose peak they add to.  Source of all: torch 2.13 c10/cuda/CUDACachingAllocator.cpp
(get_free_block, should_split, free_block); the sizes were checked on traces of ``data/differential``.
"""

from __future__ import annotations

from planner.anatomy.adapters import adapter_shapes
from planner.arrays import is_zero, maximum, minimum, where
from planner.domain.recipe import Number
from planner.domain.term import PHASES, Phase, Term
from planner.memory.activations import Activations
from planner.memory.moments import idle_in_backward
from planner.memory.optimizer import optimizer_state_bytes
from planner.memory.parts import Parts
from planner.memory.score_cache import logits_in_scores_bytes, most_heads, stranded_scores_bytes
from planner.memory.sharding import bucket_count, early_bucket_bytes
from planner.memory.widening import idle_after_widening_bytes
from planner.program.job import Job
from planner.units import MIB

# Requests of at most this size come from a pool of their own.  Source: c10/cuda/CUDACachingAllocator.cpp kSmallSize.
_SMALL_REQUEST_BYTES = MIB


def idle_by_phase(job: Job, terms: tuple[Term, ...], parts: Parts) -> dict[Phase, Number]:
    """Bytes that are reserved above what is allocated: cached blocks of no use at the peak of each phase, and fragments.

    Formula: coefficient ``slack_fraction`` of a phase's transient bytes; in the loss what one layer added in the forward, because
    its blocks are smaller than logits; by phase the leftovers that the functions of this module name, each added where it is idle
    before the largest phase is taken; and the pools of ZeRO-3's own streams.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp (get_free_block, get_pool, should_split).
    Ignored: which of several cached blocks a request gets, which is a matter of their order.
    """
    # What one layer needed while the forward ran is cached when the loss begins, in blocks that are smaller than logits, but for
    # scores of long sequences.
    in_forward, kept = (_of(terms, name, "forward") for name in ("block_recompute", "saved_activations"))
    of_no_use = maximum(in_forward - logits_in_scores_bytes(job), 0)
    # So are autocast's copies of weights, once it has ended.
    ended = parts.loss.moment.idle_copies
    logits = stranded_logits_bytes(job) + bucket_leftover_bytes(job) + ended
    scores, small = stranded_scores_bytes(job), small_pool_leftover_bytes(job)
    free = dict.fromkeys(PHASES, 0) | idle_after_widening_bytes(job, terms)
    by_phase: dict[Phase, Number] = {
        "load": 0,
        "adapters": orphaned_bytes(job) + free["adapters"],
        "forward": free["forward"],
        "loss": logits + maximum(of_no_use, free["loss"]),
        "backward": scores + free["backward"],
        "optimizer_step": step_leftover_bytes(job, kept + in_forward) + free["optimizer_step"],
        "forward_2": small + free["forward_2"],
        "loss_2": logits + maximum(of_no_use, free["loss_2"]) + small,
        "backward_2": scores + small + free["backward_2"],
        "eval": 0,
        "save": 0,
    }
    flattened = _idle_flattened(job, terms, parts.activations)
    return {phase: by_phase[phase] + n_bytes for phase, n_bytes in flattened.items()} if flattened else by_phase


def _idle_flattened(job: Job, terms: tuple[Term, ...], amounts: Activations) -> dict[Phase, Number]:
    """The part of :func:`flattened_leftover_bytes` that the activations of each phase leave idle."""
    left = flattened_leftover_bytes(job)
    if is_zero(left):
        return {}
    # Activations are as small as weights, so they can lie in these blocks.
    small = {phase: _of(terms, "saved_activations", phase) + _of(terms, "block_recompute", phase) for phase in PHASES}
    idle = {phase: maximum(left - n_bytes, 0) for phase, n_bytes in small.items()}
    return idle | idle_in_backward(job, amounts, lambda moment: maximum(left - moment.activations, 0))


def flattened_leftover_bytes(job: Job) -> Number:
    """The blocks in which trained weights lay before stages 1 and 2 copied them into one flat buffer on the GPU: cached since.

    They serve activations, which are as small, and nothing that the engine makes: its masters, states and flat gradients are
    single blocks.  Formula: the trained weights' bytes, where the GPU has room for them twice; else the engine goes by the host
    and empties the cache.
    Source: DeepSpeed 0.19.8 zero/stage_1_and_2.py __init__ (``flatten_on_accelerator``), the switch ``zero12_flattens_on_gpu``;
    seen in traces.  Ignored: logits that fit into the blocks of tables.
    """
    if not job.recipe.sharding.is_zero12 or not job.stack.zero12_flattens_on_gpu:
        return 0
    trained, room = job.trained_weight_bytes, job.hardware.gpu.visible_memory_bytes
    return trained if room is None else where(2 * trained <= room, trained, 0)


def _of(terms: tuple[Term, ...], name: str, phase: Phase) -> Number:
    return sum(term.n_bytes for term in terms if term.name == name and phase in term.phases)


def small_pool_leftover_bytes(job: Job) -> Number:
    """Gradients and step temporaries of adapter tensors of at most 1 MiB, which come from the pool of small blocks.

    That pool and the pool of large blocks have their peaks at different times, the one in the optimizer step and the other in the
    loss, and neither serves the other: in later passes the small pool still holds what the step needed.
    Formula: bytes of such tensors, once for the gradients unless they are kept (accumulation), and once for each copy that the
    step makes (foreach).  0 under a 16-bit engine, which keeps adapters in flat buffers.  Falls where one more rank lifts a
    tensor above 1 MiB.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp kSmallSize, get_pool.
    """
    adapter = job.recipe.adapter
    if adapter is None or job.regime.engine != "native":
        return 0
    small: Number = 0
    for ranks, width, count in adapter_shapes(job.model, adapter.targets):
        tensor = adapter.rank * ranks * width * job.regime.adapter / job.gradient_shards
        small = small + where(tensor <= _SMALL_REQUEST_BYTES, count * tensor, 0)
    copies = job.stack.foreach_step_copies if job.recipe.optimizer == "adamw_torch" else 0
    return small * (where(job.recipe.batch.grad_accum > 1, 0, 1) + copies)


def step_leftover_bytes(job: Job, pass_bytes: Number) -> Number:
    """Activations' blocks that the first optimizer step cannot use for the states of a base that is trained whole.

    Formula: what the passes cached (``pass_bytes``), less what serves matrices no larger than the largest activation: their share
    of the gradients and states.  0 where states are not made in the step: LoRA's are small, 16-bit engines have them before,
    paged and offloaded ones lie elsewhere.
    Source: torch 2.13 optim/adam.py _init_group (states appear in the first step, one tensor per parameter).
    Ignored: blocks that several smaller matrices share.
    """
    recipe, regime = job.recipe, job.regime
    made_in_step = recipe.method == "full" and regime.engine == "native" and not recipe.offloads_optimizer
    if not made_in_step or recipe.optimizer.startswith("paged"):
        return 0
    held = job.trained_weight_bytes / job.gradient_shards + optimizer_state_bytes(job)
    return maximum(pass_bytes - served_share(job) * held, 0)


def served_share(job: Job) -> Number:
    """Share of the blocks' weights that are in matrices no larger than the largest activation; more tokens raise it in steps.

    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp get_free_block: a free block serves requests of at most its size.
    """
    largest = job.tokens * max(group.block.mlp.width for group in job.model.groups) * job.regime.compute
    if job.recipe.attention == "eager":
        largest = maximum(largest, 2 * most_heads(job) * job.tokens * job.recipe.batch.seq_len)
    total: int = 0
    served: Number = 0
    for group in job.model.groups:
        for linear in group.block.linears:
            weights = group.count * linear.weight_count
            total += weights
            served = served + where(linear.weight_count * job.regime.gradient <= largest, weights, 0)
    return served / max(total, 1)


def stranded_logits_bytes(job: Job) -> Number:
    """The 16-bit logits block, cached but too small for the fp32 gradients that follow: reserved, not allocated.

    Only where the model's code widens its logits: then the backward of the loss holds three fp32 tensors.  Where autocast meets
    16-bit logits the log-softmax stays in 16 bits, and the one gradient in fp32 finds the block of the returned logits.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp: a free block serves requests of at most its size.
    ATen/native/LossNLL.cpp cross_entropy_loss names the dtype of its log-softmax, which ATen/autocast_mode.h
    fp32_set_opt_dtype then leaves.
    """
    if job.recipe.loss != "hf" or job.regime.compute == 4 or not job.model.fp32_logits:
        return 0
    return job.tokens * job.model.vocab_size * job.regime.compute


def bucket_leftover_bytes(job: Job) -> Number:
    """What is left of the logits block that early gradient buckets were cut from, and that no other logits tensor fits any more.

    The logits are free when the loss begins its backward, and buckets that are made then (:func:`early_bucket_bytes`) take the
    smallest block that is large enough: the logits', whose place the gradient of the loss would have taken.
    Formula: that block less the buckets inside; where the block was of no use anyway (:func:`stranded_logits_bytes`) minus the
    buckets.  0 where a bucket is larger than the logits, or made later.
    Source: DeepSpeed 0.12.6 zero/stage_1_and_2.py backward; torch 2.13 c10/cuda/CUDACachingAllocator.cpp get_free_block (best
    fit), should_split; seen in replays (tests/against_libraries/test_bucket_blocks.py).
    """
    buckets = early_bucket_bytes(job)
    if job.recipe.loss != "hf" or is_zero(buckets):
        return 0
    bucket = buckets / bucket_count(job)
    logits = job.tokens * job.model.vocab_size
    narrow = logits * job.regime.compute
    inside = minimum(buckets, narrow // bucket * bucket)
    if is_zero(stranded_logits_bytes(job)):
        return where(narrow >= bucket, narrow - inside, 0)
    wide = logits * 4
    beside = where(wide >= bucket, wide - minimum(buckets, wide // bucket * bucket), 0)
    return where(narrow >= bucket, -inside, beside)


def orphaned_bytes(job: Job) -> Number:
    """Segments that stay reserved after a dtype conversion has replaced tensors by others of another size.

    Formula: coefficient ``orphan_fraction`` of the old copies: all that is not quantised, at 2 bytes (tables, head and norms at 4
    more where the engine halves them again); fp32 adapters that a 16-bit engine halves.  Later passes use these blocks again, so
    they only set the least that is reserved.  Where a whole base is widened: :mod:`planner.memory.widening`.
    Source: peft 0.21 utils/other.py prepare_model_for_kbit_training; the freed 16-bit blocks are too small for the fp32 copies of
    equal tensors, not for what follows.
    """
    return job.coefficients.orphan_fraction * (_replaced_weight_bytes(job) + _halved_adapter_bytes(job))


def _replaced_weight_bytes(job: Job) -> Number:
    """Bytes of 16-bit weights that preparation replaced by fp32 ones, and of fp32 ones that the engine halved again."""
    recipe, counts = job.recipe, job.counts
    if recipe.method != "lora":
        return 0
    if not job.regime.quantized or job.stack.kbit_upcast != "all" or recipe.numerics.quantization == "gptq-int4":
        return 0
    halved = job.regime.engine == "deepspeed" and job.stack.engine_halves_kbit
    return (counts.total - counts.quantizable) * (6 if halved else 2)


def _halved_adapter_bytes(job: Job) -> Number:
    """Bytes of fp32 adapters that DeepSpeed's 16-bit engine replaced."""
    adapter = job.recipe.adapter
    return job.adapter_params * 4 if adapter is not None and adapter.dtype == "fp32" and job.regime.adapter < 4 else 0
