"""What the pools of an engine's own streams keep: their blocks serve no other stream, so they add to what is reserved."""

from __future__ import annotations

from planner.arrays import maximum, minimum, where
from planner.domain.recipe import Number
from planner.domain.term import Phase
from planner.memory.activations import Activations
from planner.memory.moments import idle_in_backward
from planner.memory.optimizer import NORM_PART_ELEMENTS
from planner.memory.sharding import (
    MAX_LIVE_PARAMS,
    Gathered,
    divided_float_params,
    head_comes_with_others,
    largest_adapter_elements,
    reduce_bucket_elements,
)
from planner.program.job import Job


def gather_pool_bytes(job: Job, gathered: Gathered) -> Number:
    """Most bytes that the pool of ZeRO-3's gather stream keeps: its blocks serve no other stream.

    ``gathered``: what is gathered at each moment (:func:`planner.memory.sharding.gathered_parameter_bytes`).

    Formula: the most that is gathered at once, and one buffer of the largest parameter where the head comes with others, because
    the room that smaller ones leave is in pieces; and this process's part of the largest, where it comes from the host.
    Traces show up to 10 % more, or up to 1 GB less where such a buffer fits.
    Source: DeepSpeed 0.12-0.19 zero/partitioned_param_coordinator.py (``__allgather_stream``); torch 2.13
    c10/cuda/CUDACachingAllocator.cpp keeps blocks per stream.
    """
    if not job.recipe.sharding.is_zero3:
        return 0
    width = job.regime.compute
    overshoot = minimum(divided_float_params(job) * width, MAX_LIVE_PARAMS * width + gathered.first)
    with_flat = where(gathered.first > 0, overshoot + gathered.first, 0)
    passes = where(head_comes_with_others(job), with_flat, gathered.passes)
    own = where(job.hardware.world_size > 1, gathered.first / job.hardware.world_size, 0) if job.recipe.offloads_params else 0
    return maximum(passes, gathered.loss) + own


def reduction_stream_bytes(job: Job) -> Number:
    """Bytes that ZeRO-3's reduction stream keeps in its own pool, on top of the main stream's when reserved.

    With more than one process: a bucket of gradients copied together, at most all of them; a gradient that is larger than the
    bucket is sent from where it is.  With an offloaded optimizer beside it, for this process's part of the largest trained
    tensor: the part, and its copy in fp64 for the norm (at most 250 million elements) or in fp32 for the host.
    Source: DeepSpeed 0.12.6 and 0.19.8 runtime/comm/coalesced_collectives.py reduce_scatter_coalesced; zero/stage3.py
    partition_grads, _constant_buffered_norm2; torch 2.13 ATen/native/cuda/Copy.cu (a copy to the host in another dtype is
    converted on the GPU), c10/cuda/CUDACachingAllocator.cpp keeps blocks per stream.
    """
    if not job.recipe.sharding.is_zero3:
        return 0
    together = minimum(job.trained, reduce_bucket_elements(job)) * job.regime.gradient
    sent = where(job.hardware.world_size > 1, together, 0)
    if not job.recipe.offloads_optimizer:
        return sent
    largest = job.counts.largest if job.recipe.method == "full" else minimum(job.trained, largest_adapter_elements(job))
    part = largest / job.optimizer_shards
    return sent + part * job.regime.gradient + maximum(8 * minimum(part, NORM_PART_ELEMENTS), 4 * part)


def gradient_pool_bytes(job: Job) -> Number:
    """Bytes that the pool of the reduction stream keeps, which the main stream cannot use while they are free.

    FSDP2 and ZeRO-1 and 2 that overlap: this process's part of the gradients, under ZeRO twice where it accumulates, because the
    parts of a later micro-step are added to the first.  0 for others, and where the optimizer is offloaded.
    Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce (sharded gradients are made on the
    reduce-scatter stream); DeepSpeed 0.12-0.19 zero/stage_1_and_2.py copy_grads_in_partition (``grads_in_partition``),
    under ``reduction_stream`` with ``overlap_comm``.
    Ignored: a bucket of gradients of several owners, copied together before it is sent (at most 1 GB with DeepSpeed's default),
    and the fp64 norm of an offloaded gradient on the process that has it.
    """
    recipe = job.recipe
    if _is_fsdp2(job):
        return 0 if recipe.offloads_optimizer else job.trained_weight_bytes / job.gradient_shards
    if not recipe.sharding.is_zero12 or not job.stack.zero12_overlap:
        return 0
    if recipe.offloads_optimizer:
        return 0
    return where(recipe.batch.grad_accum > 1, 2, 1) * job.trained * job.regime.gradient / job.optimizer_shards


def idle_gradient_pool_bytes(job: Job, amounts: Activations, pool: Number, gradients: dict[Phase, Number]) -> dict[Phase, Number]:
    """Bytes of that ``pool`` in which none of a phase's ``gradients`` lies.

    None lie there that FSDP accumulates whole, nor those of stage 1 before its step.
    Source: as of :func:`gradient_pool_bytes`; torch 2.13 _fsdp_param_group.py post_backward (``reduce_grads``).
    """
    whole = job.recipe.sharding.is_zero1 or job.recipe.uses_fsdp
    inside = where(job.recipe.batch.grad_accum > 1, 0, 1) if whole else 1
    idle = {phase: pool - minimum(n_bytes * inside, pool) for phase, n_bytes in gradients.items()}
    idle["optimizer_step"] = pool - minimum(gradients["optimizer_step"], pool)
    return idle | idle_in_backward(job, amounts, lambda moment: pool - minimum(moment.gradients * inside, pool))


def fsdp_gather_pool_bytes(job: Job) -> Number:
    """Bytes of the buffer that FSDP2's gather stream receives the root's parameters in, with its own part cast before it is sent.

    Formula: tables and head in the compute dtype, once and a part; what blocks receive is smaller and fits inside.  It is free
    when the peak comes, and serves no other stream.
    Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_all_gather (all_gather_copy_in_stream).
    """
    if not _is_fsdp2(job):
        return 0
    root = (job.counts.tables + job.counts.head) * job.regime.compute
    return where(job.hardware.world_size > 1, root + root / job.hardware.world_size, 0)


def _is_fsdp2(job: Job) -> bool:
    return job.recipe.sharding.dtensors
