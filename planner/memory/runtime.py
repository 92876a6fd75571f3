"""Bytes outside tensors: CUDA context, libraries, NCCL, and what the caching allocator holds above what is allocated."""

from __future__ import annotations

from planner.arrays import where
from planner.domain.recipe import Number
from planner.memory.job import Job
from planner.memory.optimizer import step_block_bytes
from planner.memory.sharding import gather_stream_bytes, reduction_stream_bytes
from planner.units import KIB, MIB


def context_bytes(job: Job) -> float:
    """CUDA context with lazily loaded kernels, on top of what the allocator reserves.

    Coefficient ``context_bytes``.  Source: pytorch#86509 (274 MiB lazy, 636 MiB eager), #107667, #109888.
    """
    return job.coefficients.context_bytes


def cublas_workspace_bytes(job: Job) -> int:
    """cuBLAS workspace, inside the allocator's pool: 32 MiB from compute capability 9.0, else 8.125 MiB.

    Source: torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp parseChosenWorkspaceSize.
    """
    try:
        major = float(job.hardware.gpu.compute_capability)
    except ValueError:
        major = 0.0
    return 32 * MIB if major >= 9.0 else 2 * 4 * MIB + 8 * 16 * KIB


def nccl_bytes(job: Job) -> Number:
    """Channel buffers of NCCL communicators; none with one process.

    Coefficient ``nccl_bytes``.  Source: NCCL src/init.cc: about 9.2 MiB per channel and peer.
    """
    return where(job.hardware.world_size > 1, job.coefficients.nccl_bytes, 0)


def allocator_slack_bytes(job: Job, transient_bytes: Number) -> Number:
    """Bytes reserved above allocated: rounding and fragmentation of tensors that come and go.

    Coefficient ``slack_fraction`` of the transient bytes at the peak, plus orphaned segments (:func:`orphaned_bytes`) and the
    pools of ZeRO-3's gather and reduction streams.  Blocks stranded inside one phase are added where they are, in ``peak``.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp (512 B and 2 MiB rounding, 20 MiB segments).
    """
    fraction = fragmentation_bytes(job, transient_bytes)
    streams = gather_stream_bytes(job) + reduction_stream_bytes(job)
    return fraction + orphaned_bytes(job) + streams


def fragmentation_bytes(job: Job, transient_bytes: Number) -> Number:
    """The part of the slack that no cache flush returns: room inside segments that are partly in use.

    Coefficient ``slack_fraction`` of the transient bytes.  Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp
    release_cached_blocks frees whole segments only.
    """
    return job.coefficients.slack_fraction * transient_bytes


def stranded_logits_bytes(job: Job) -> Number:
    """The 16-bit logits block, cached but too small for the fp32 gradients that follow: reserved, not allocated.

    Only where the backward of the loss holds as much as its forward or more.  Source: torch 2.13
    c10/cuda/CUDACachingAllocator.cpp: a free block serves requests of at most its size.
    """
    if job.recipe.loss != "hf" or job.regime.compute == 4:
        return 0
    wide = job.model.fp32_logits or job.regime.autocast
    return job.tokens * job.model.vocab_size * job.regime.compute if wide else 0


def stranded_scores_bytes(job: Job) -> Number:
    """16-bit attention scores, cached but too small for the fp32 gradient of the softmax: reserved, not allocated.

    Formula: 2 bytes per head, token and key of one layer, eager attention in 16-bit.  Of two 16-bit and two fp32 blocks that the
    layer's backward needs in turn, one 16-bit block is free when both fp32 ones are live.
    Source: transformers 5.23 models/llama/modeling_llama.py eager_attention_forward; c10/cuda/CUDACachingAllocator.cpp.
    """
    if job.recipe.attention != "eager" or job.regime.compute == 4:
        return 0
    heads = max(group.block.attention.n_heads for group in job.model.groups)
    return job.regime.compute * heads * job.tokens * job.recipe.batch.seq_len


def orphaned_bytes(job: Job) -> Number:
    """Segments that stay reserved after a dtype conversion has replaced tensors by others of another size.

    Formula: coefficient ``orphan_fraction`` of the old copies: tables, head and norms at 2 bytes (at 4 more where the engine
    halves them again); the whole model where an unquantised base is prepared too; fp32 adapters that a 16-bit engine halves.
    Source: peft 0.21 utils/other.py prepare_model_for_kbit_training; the freed 16-bit blocks are too small for what follows.
    """
    return job.coefficients.orphan_fraction * (_replaced_weight_bytes(job) + _halved_adapter_bytes(job))


def _replaced_weight_bytes(job: Job) -> Number:
    """Bytes of 16-bit weights that preparation replaced by fp32 ones, and of fp32 ones that the engine halved again."""
    recipe, counts = job.recipe, job.counts
    if recipe.method != "lora":
        return 0
    if not job.regime.quantized:
        upcast = job.stack.prepares_unquantized and job.regime.engine != "deepspeed" and recipe.numerics.load_dtype != "fp32"
        return counts.total * 2 if upcast else 0
    if job.stack.kbit_upcast != "all" or recipe.numerics.quantization == "gptq-int4":
        return 0
    halved = job.regime.engine == "deepspeed" and job.stack.engine_halves_kbit
    return (counts.tables + counts.head + counts.norms) * (6 if halved else 2)


def _halved_adapter_bytes(job: Job) -> Number:
    """Bytes of fp32 adapters that DeepSpeed's 16-bit engine replaced."""
    adapter = job.recipe.adapter
    return job.adapter_params * 4 if adapter is not None and adapter.dtype == "fp32" and job.regime.adapter < 4 else 0


def reserved_in_step_bytes(job: Job, step_bytes: Number, pass_bytes: Number) -> Number:
    """Bytes reserved when DeepSpeed's step allocates blocks that the cache of the passes cannot serve.

    The step flattens all gradients into single blocks larger than any that the passes freed, so on the first step both are
    reserved side
    by side.  Formula: bytes allocated in the step plus the transient bytes of the passes, where the step's largest block
    exceeds the largest logits tensor; else 0.
    Source: DeepSpeed 0.19 zero/stage_1_and_2.py step (flatten, then fp32 copy); c10/cuda/CUDACachingAllocator.cpp best fit.
    """
    block = step_block_bytes(job)
    largest_tensor = job.tokens * job.model.vocab_size * job.regime.compute
    return where(block > largest_tensor, step_bytes + pass_bytes, 0)
