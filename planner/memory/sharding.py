"""Bytes that sharded training needs beyond its shards: buckets, gathered parameters, persistent small tensors."""

from __future__ import annotations

from planner.anatomy.adapters import adapter_shapes
from planner.arrays import maximum, minimum, where
from planner.domain.recipe import Number
from planner.memory.job import Job

# DeepSpeed's own defaults, in elements.  Source: DeepSpeed 0.19 runtime/zero/config.py.
_REDUCE_BUCKET = 500_000_000
_PREFETCH_BUCKET = 50_000_000
_MAX_LIVE = 1_000_000_000


def reduce_bucket_elements(job: Job) -> int:
    """Elements of ZeRO's gradient bucket: what the stack's template sets, hidden squared for ``auto``, else DeepSpeed's 5e8.

    Source: transformers 5.23 integrations/deepspeed.py trainer_config_finalize; DeepSpeed 0.19 runtime/zero/config.py; the
    switches ``zero_auto_buckets`` (stage 3) and ``zero12_bucket_elements`` (stages 1 and 2) of the stack.
    """
    hidden_squared = job.model.hidden_size**2
    if job.recipe.sharding == "zero3":
        return hidden_squared if job.stack.zero_auto_buckets else _REDUCE_BUCKET
    return job.stack.zero12_bucket_elements or hidden_squared


def gradient_bucket_bytes(job: Job) -> Number:
    """Bytes of ZeRO's contiguous gradient buckets; 0 without ZeRO.

    Formula: elements of the bucket times the gradient's bytes times :func:`bucket_count`.
    Source: DeepSpeed 0.12-0.19 zero/stage_1_and_2.py (ipg_buffer), zero/stage3.py (__ipg_bucket_flat_buffer).
    """
    if job.regime.engine != "deepspeed":
        return 0
    return reduce_bucket_elements(job) * bucket_count(job) * job.regime.gradient


def kept_bucket_bytes(job: Job) -> Number:
    """Bytes of gradient buckets that stay from one micro-step to the next; 0 but under stage 1 with accumulation.

    Formula: :func:`gradient_bucket_bytes`, because buckets go where gradients are reduced, after the last micro-step.
    Source: DeepSpeed 0.19.8 zero/stage_1_and_2.py process_gradients (setup_buckets), independent_gradient_partition_epilogue;
    engine.py allreduce_gradients; found by tracing.
    """
    if job.recipe.sharding != "zero1":
        return 0
    return where(job.recipe.batch.grad_accum > 1, gradient_bucket_bytes(job), 0)


def bucket_count(job: Job) -> int:
    """Gradient buckets: one under stage 3; under stages 1 and 2 two where reduction overlaps backward, else one.

    Source: DeepSpeed 0.12-0.19 zero/stage_1_and_2.py (a second buffer with ``overlap_comm``); the switch ``zero12_overlap``.
    """
    return 2 if job.recipe.sharding in ("zero1", "zero2") and job.stack.zero12_overlap else 1


def offload_staging_bytes(job: Job) -> Number:
    """Bytes of the GPU buffer through which stages 1 and 2 send gradients to an offloaded optimizer, from start to end.

    Formula: the largest trained tensor in the gradient's dtype.  Source: DeepSpeed 0.12-0.19 zero/stage_1_and_2.py
    (temp_grad_buffer_for_gpu_offload).  Ignored: its twin in host RAM, of the same size.
    """
    recipe = job.recipe
    if not recipe.offloads_optimizer or recipe.sharding not in ("zero1", "zero2"):
        return 0
    largest = job.counts.largest if recipe.method == "full" else minimum(job.trained, _largest_adapter(job))
    return largest * job.regime.gradient


def gathered_parameter_bytes(job: Job) -> Number:
    """Bytes of parameters that are whole on a GPU while a block computes, under ZeRO-3 and FSDP.

    ZeRO-3 keeps what will be reused within its reuse distance, up to ``max_live_parameters`` (1e9), plus a prefetch bucket.
    FSDP holds the current and the prefetched block in compute dtype.  Source: DeepSpeed 0.19
    zero/partitioned_param_coordinator.py; torch 2.13 distributed/fsdp (fully_shard, implicit prefetch of one module).
    """
    regime, counts = job.regime, job.counts
    floats = counts.total if not regime.quantized else counts.total - counts.quantizable
    if job.recipe.sharding == "zero3":
        prefetch = 0.9 * job.model.hidden_size**2 if job.stack.zero_auto_buckets else _PREFETCH_BUCKET
        return minimum(floats, max(_MAX_LIVE, counts.largest) + prefetch) * regime.compute
    if job.recipe.sharding in ("fsdp", "fsdp1", "hsdp", "fsdp-grad-op"):
        # A table that is tied to the head is gathered with it, and stays from the first layer to the loss.
        ends = job.model.token_embedding.param_count if job.model.tied else counts.head
        return 2 * min(counts.block_largest, floats) * regime.compute + ends * regime.compute
    return 0


def persistent_parameter_bytes(job: Job) -> Number:
    """Bytes of parameters below ZeRO-3's persistence threshold, which stay whole on every GPU.

    Formula: norms and biases, and LoRA matrices of at most 10 x hidden elements under ``auto``, 1e5 by default (rank 8 over the
    model's width is below both).  Ignored: routers above that.
    Source: DeepSpeed 0.19 runtime/zero/parameter_offload.py mark_persistent_parameters.
    """
    if job.recipe.sharding != "zero3":
        return 0
    total: Number = (job.counts.norms + job.counts.block_rest) * job.regime.compute
    adapter = job.recipe.adapter
    if adapter is None:
        return total
    threshold = 10 * job.model.hidden_size if job.stack.zero_auto_buckets else _PERSISTENCE
    for ranks, width, count in adapter_shapes(job.model, adapter.targets):
        elements = adapter.rank * ranks * width
        total = total + where(elements <= threshold, count * elements * job.regime.adapter, 0)
    return total


# Elements.  Source: DeepSpeed 0.19 runtime/zero/config.py stage3_param_persistence_threshold.
_PERSISTENCE = 100_000


def fsdp_unsharded_gradient_bytes(job: Job) -> Number:
    """Bytes of one block's whole gradient before it is reduced, under FSDP, in compute dtype, and of the flat copy that is sent.

    Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce (``reduce_scatter_input``).
    """
    if not job.recipe.uses_fsdp:
        return 0
    per_block = job.trained / max(job.model.n_layers, 1)
    return 2 * minimum(maximum(per_block, 0), job.counts.block_largest) * job.regime.compute


def gather_stream_bytes(job: Job) -> Number:
    """Bytes of the flat buffer that ZeRO-3 receives a gathered parameter in before it copies the parts together.

    Formula: the largest parameter in compute dtype, on the gather stream's own pool; 0 with one process, which copies directly.
    Source: DeepSpeed 0.12-0.19 zero/partition_parameters.py AllGatherCoalescedHandle.wait (``torch.cat`` of the partitions).
    """
    if job.recipe.sharding != "zero3":
        return 0
    counts = job.counts
    largest = counts.largest if not job.regime.quantized else max(counts.head, job.model.token_embedding.param_count)
    return where(job.hardware.world_size > 1, largest * job.regime.compute, 0)


def reduction_stream_bytes(job: Job) -> Number:
    """Bytes that ZeRO-3's reduction stream keeps in its own pool, on top of the main stream's when reserved.

    For the largest trained tensor of E elements: its averaged copy and its padded copy (2 gradients each), and with an offloaded
    optimizer the fp64 copy for its norm, in parts of at most 250 million elements.  With more than one process also the received
    partition.  Source: DeepSpeed 0.19 zero/stage3.py __avg_scatter_grads and _constant_buffered_norm2,
    runtime/comm/coalesced_collectives.py; torch 2.13 c10/cuda/CUDACachingAllocator.cpp keeps blocks per stream.
    """
    if job.recipe.sharding != "zero3":
        return 0
    largest = job.counts.largest if job.recipe.method == "full" else minimum(job.trained, _largest_adapter(job))
    norm = 8 * minimum(largest, _NORM_PART) if job.recipe.offloads_optimizer else 0
    return 2 * largest * job.regime.gradient + norm


def _largest_adapter(job: Job) -> Number:
    adapter = job.recipe.adapter
    if adapter is None:
        return 0
    widest = max(max(linear.in_features, linear.out_features) for group in job.model.groups for linear in group.block.linears)
    return maximum(adapter.rank * widest, job.saved_params)


# Elements per part when a gradient's norm is taken in fp64.  Source: DeepSpeed 0.19 zero/stage3.py _constant_buffered_norm2.
_NORM_PART = 250_000_000
