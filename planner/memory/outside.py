"""What the device holds outside of the allocator, and outlier columns, whose number the data decides."""

from __future__ import annotations

from collections.abc import Callable

from planner.anatomy.quantized_matrices import is_quantizable
from planner.arrays import is_zero, maximum, where
from planner.domain.hardware import USUAL_MULTIPROCESSORS
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.domain.recipes.recipe import Number
from planner.domain.term import PHASES, Phase, Term, TermKind, TermName
from planner.program.head.vllm import standing_bytes
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.update.states import states_of

# Threads that one multiprocessor can hold, by compute capability; torch prints the same as
# max_threads_per_multi_processor.
_THREADS_BY_CAPABILITY = {
    "7.0": 2048,
    "7.5": 1024,
    "8.0": 2048,
    "8.6": 1536,
    "8.9": 1536,
    "9.0": 2048,
    "10.0": 2048,
}
_THREADS_BY_CAPABILITY |= {"10.3": 2048, "12.0": 1536}
# Where a card's multiprocessors are not known: as on an A100.
_USUAL_THREADS = USUAL_MULTIPROCESSORS * 2048


_ALL: frozenset[Phase] = frozenset(PHASES)
_AFTER_LOADING = _ALL - {"load", "adapters"}
_STEPS: frozenset[Phase] = frozenset(
    {"forward", "loss", "backward", "optimizer_step", "forward_2", "loss_2", "backward_2"}
)
_AFTER_STEP: frozenset[Phase] = (_STEPS - {"forward", "loss", "backward"}) | {"generation_2", "eval", "save"}


def resident_threads(job: Job) -> int | None:
    """Threads that the whole GPU can hold at once;
    ``None`` where its multiprocessors or what each can hold are not known.

    Source: ``multiprocessors`` of data/gpus x threads each can hold, CUDA C++ Programming Guide,
    technical specifications.
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
    """CUDA context on top of what the allocator reserves:
    local memory of every thread that the GPU can hold, and loaded kernels.

    Formula: multiprocessors x threads each can hold x coefficient ``thread_memory_bytes`` + coefficient
    ``context_bytes``.  The driver keeps local memory for all of them at once, as much for each as the largest
    kernel so far asked for, and never less than the default stack.
    Source: forums.developer.nvidia.com/t/local-memory-management/289339; CUDA driver API, cuCtxSetLimit (the
    stack grows with the kernels and is not reset).  Bare contexts of torch 2.7.1+cu128 are 256 MiB on an RTX
    3090 (InvokeAI#9413) and about 520 MiB on an H200 (slide2vec#326): 2.0-2.1 KiB for each of 125,952 and
    270,336 threads.
    Ignored: PyTorch before 1.13 or CUDA before 11.7, which load all kernels at once: 360 MiB more
    (pytorch#86509).  That a MIG slice holds fewer threads than the card it is of; what ROCm and other
    runtimes keep.
    """
    return job.coefficients.thread_memory_bytes * counted_threads(job) + job.coefficients.context_bytes


def nccl_bytes(job: Job) -> Number:
    """Channel buffers of NCCL communicators; none with one process.

    Coefficient ``nccl_bytes`` for each kind of group that a GPU is in: of those that divide weights or
    gradients, matrices, or sequences; of those that divide experts or their features, and the rest of them.
    Megatron has one for neighbours in a pipeline, too, and one of all GPUs for the norm of gradients.
    Source: NCCL src/init.cc: about 9.2 MiB per channel and peer; torch 2.13 distributed/device_mesh.py, which
    has a group for each dimension; megatron-core 0.16.1 parallel_state.py initialize_model_parallel,
    optimizer/distrib_optimizer.py get_grad_stats_parallel_group.
    """
    recipe, parallel, hardware = job.recipe, job.recipe.parallel, job.hardware
    groups: Number = recipe.sharding.communicates + (parallel.tensor > 1) + (parallel.context > 1)
    if parallel.expert_gpus > 1:
        rest = where(recipe.shards(hardware) * parallel.tensor > parallel.expert_gpus, 1, 0)
        groups = groups + (parallel.experts > 1) + (parallel.expert_tensor > 1) + rest
    if recipe.sharding.engine == "megatron-core":
        piped = job.model.stage is not None
        groups = groups + piped + (piped or parallel.tensor > 1 or parallel.experts > 1)
    return where(hardware.world_size > 1, job.coefficients.nccl_bytes * maximum(groups, 1), 0)


def driver_terms(job: Job) -> tuple[Term, ...]:
    """CUDA context, NCCL's buffers and paged optimizer states."""
    whole = isinstance(job.optimizer_shards, int) and job.optimizer_shards == 1
    shards: TermKind = "replicated" if whole else "sharded"
    return (
        *_term(job, context_bytes, "context", "CUDA context and kernels", _ALL),
        *_term(job, nccl_bytes, "nccl", "NCCL buffers", _ALL),
        *_term(job, standing_bytes, "vllm_engine", "vLLM beside the training", _AFTER_LOADING),
        *_term(
            job, paged_bytes, "paged_optimizer_states", "paged optimizer states", _AFTER_STEP, kind=shards
        ),
    )


def _term(
    job: Job,
    formula: Callable[[Job], Number],
    name: TermName,
    label: str,
    phases: frozenset[Phase],
    *,
    kind: TermKind = "replicated",
) -> tuple[Term, ...]:
    """The term that ``formula`` counts, or nothing where a job does not have it."""
    n_bytes = formula(job)
    if is_zero(n_bytes):
        return ()
    return (Term(name, label, n_bytes, kind, phases, f"{formula.__module__}:{formula.__name__}"),)


def paged_bytes(job: Job) -> Number:
    """Paged optimizer states: managed memory, which is on the card while there is room.

    It can be evicted whole, so host RAM must be able to take as much.  Small tensors have theirs in the
    program.
    Source: bitsandbytes 0.50 optim/optimizer.py get_state_buffer, functional.py get_paged; CUDA programming
    guide, unified memory.
    """
    recipe = job.recipe
    if not OPTIMIZER_FACTS[recipe.optimizer].paged or recipe.offloads_optimizer:
        return 0
    values = unit_values(job)
    total: Number = 0
    for each in job.trained_parameters:
        paged = (state for state in states_of(job, each.weight) if state.paged)
        total = total + each.count * sum(state.unit_bytes * values[state.unit] for state in paged)
    return total / job.optimizer_shards


def outlier_terms(job: Job) -> tuple[Term, ...]:
    """The columns of older int8 layers that met outliers, which no request of the program is for.

    Source: :func:`outlier_weight_bytes`.
    """
    return _term(job, outlier_weight_bytes, "dequantization", "outlier columns", _STEPS)


def outlier_weight_bytes(job: Job) -> Number:
    """16/32-bit copies of the weight columns that met outliers,
    which older int8 layers keep from one step to the next.

    Formula: the share of input columns with a value above the threshold of 6, times elements of int8
    matrices, times the bytes of their input's dtype.  Source: bitsandbytes 0.41.3 autograd/_functions.py
    MatMul8bitLt.forward (``state.subB``), until 0.45.5.
    Ignored: the share differs from matrix to matrix and grows slowly with the tokens of a micro-batch.
    """
    stack, regime = job.stack, job.regime
    if job.recipe.numerics.quantization != "int8" or not stack.int8_keeps_outlier_weights:
        return 0
    read = {"attn_in": regime.norm_out, "mlp_in": regime.norm_out, "attn_out": regime.compute}
    read |= {"mixer_in": regime.norm_out, "mixer_out": regime.compute}
    whole = sum(
        group.count * linear.weight_count * read.get(linear.reads, regime.linear_out)
        for group in job.model.groups
        for linear in group.block.linears
        if is_quantizable(linear, stack.passes_over)
    )
    return job.coefficients.int8_outlier_fraction * whole
