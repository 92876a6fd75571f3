"""Bytes outside tensors: CUDA context, libraries, NCCL, and what the caching allocator holds above what is allocated."""

from __future__ import annotations

from planner.arrays import where
from planner.domain.recipe import Number
from planner.memory.job import Job
from planner.memory.optimizer import step_block_bytes
from planner.memory.pools import fsdp_gather_pool_bytes, reduction_stream_bytes
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


def side_stream_bytes(job: Job) -> Number:
    """Pools of ZeRO-3's reduction stream and of FSDP2's gather stream, whose blocks cannot serve the main stream.

    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp keeps blocks per stream.
    """
    return reduction_stream_bytes(job) + fsdp_gather_pool_bytes(job)


def fragmentation_bytes(job: Job, transient_bytes: Number) -> Number:
    """The part of the slack that no cache flush returns: rounding, and room inside segments that are partly in use.

    Coefficient ``slack_fraction`` of the bytes that come and go.  Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp:
    512 B and 2 MiB rounding, 20 MiB segments, remainders of up to 1 MiB; release_cached_blocks frees whole segments only.
    """
    return job.coefficients.slack_fraction * transient_bytes


def reserved_in_step_bytes(job: Job, step_bytes: Number, pass_bytes: Number) -> Number:
    """Bytes reserved when DeepSpeed's step allocates blocks that the cache of the passes cannot serve.

    ``pass_bytes`` is what the passes hold beyond the blocks that setting up left (:func:`optimizer.initial_block_bytes`).
    The step flattens all gradients into single blocks larger than any that the passes freed, so on the first step both are
    reserved side by side.  Formula: bytes allocated in the step plus ``pass_bytes``, where the step's largest block exceeds the
    largest logits tensor; else 0.
    Source: DeepSpeed 0.19 zero/stage_1_and_2.py step (flatten, then fp32 copy); c10/cuda/CUDACachingAllocator.cpp best fit.
    """
    block = step_block_bytes(job)
    largest_tensor = job.tokens * job.model.vocab_size * job.regime.compute
    return where(block > largest_tensor, step_bytes + pass_bytes, 0)
