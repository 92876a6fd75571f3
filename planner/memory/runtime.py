"""Bytes outside tensors: CUDA context, libraries, NCCL, and what the caching allocator holds above what is allocated."""

from __future__ import annotations

from planner.arrays import where
from planner.domain.recipe import Number
from planner.memory.optimizer import step_block_bytes
from planner.memory.pools import fsdp_gather_pool_bytes, reduction_stream_bytes
from planner.program.job import Job
from planner.units import KIB, MIB

# Threads that one multiprocessor can hold, by compute capability; torch prints the same as max_threads_per_multi_processor.
_THREADS_BY_CAPABILITY = {"7.0": 2048, "7.5": 1024, "8.0": 2048, "8.6": 1536, "8.9": 1536, "9.0": 2048, "10.0": 2048}
_THREADS_BY_CAPABILITY |= {"10.3": 2048, "12.0": 1536}
# Where a card's multiprocessors are not known: as on an A100, 108 x 2,048.
_USUAL_THREADS = 108 * 2048


def resident_threads(job: Job) -> int | None:
    """Threads that the whole GPU can hold at once; ``None`` where its multiprocessors or what each can hold are not known.

    Source: ``multiprocessors`` of data/gpus x threads each can hold, CUDA C++ Programming Guide, technical specifications.
    """
    gpu = job.hardware.gpu
    each = _THREADS_BY_CAPABILITY.get(gpu.compute_capability)
    return None if each is None or gpu.multiprocessors is None else each * gpu.multiprocessors


def counted_threads(job: Job) -> int:
    """Threads that the context is counted for: those of the card, or of an A100 where they are not known.

    Source: :func:`resident_threads`; assumed where that is unknown.
    """
    return resident_threads(job) or _USUAL_THREADS


def context_bytes(job: Job) -> Number:
    """CUDA context on top of what the allocator reserves: local memory of every thread that the GPU can hold, and loaded kernels.

    Formula: multiprocessors x threads each can hold x coefficient ``thread_memory_bytes`` + coefficient ``context_bytes``.
    The driver keeps local memory for all of them at once, as much for each as the largest kernel so far asked for, and never less
    than the default stack.
    Source: forums.developer.nvidia.com/t/local-memory-management/289339; CUDA driver API, cuCtxSetLimit (the stack grows with the
    kernels and is not reset).  Bare contexts of torch 2.7.1+cu128 are 256 MiB on an RTX 3090 (InvokeAI#9413) and about 520 MiB on
    an H200 (slide2vec#326): 2.0-2.1 KiB for each of 125,952 and 270,336 threads.
    Ignored: PyTorch before 1.13 or CUDA before 11.7, which load all kernels at once: 360 MiB more (pytorch#86509).  That a MIG
    slice holds fewer threads than the card it is of; what ROCm and other runtimes keep.
    """
    return job.coefficients.thread_memory_bytes * counted_threads(job) + job.coefficients.context_bytes


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
