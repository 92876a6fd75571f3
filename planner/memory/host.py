"""Bytes of host RAM: per process and per node."""

from __future__ import annotations

from planner.arrays import ceil_div, ceil_pow2, maximum, minimum
from planner.domain.prediction import HostPrediction
from planner.domain.recipe import DTYPE_BYTES, Number
from planner.domain.term import HostTerm
from planner.memory.job import Job
from planner.units import MIB

_SUB_GROUP_PARAMS = 1_000_000_000


def process_baseline_bytes(job: Job) -> float:
    """Resident bytes of a process that has imported the libraries, opened a CUDA context and tokenised a small data set.

    Coefficient ``host_process_bytes``.
    """
    return job.coefficients.host_process_bytes


def mapped_checkpoint_bytes(job: Job) -> Number:
    """Checkpoint files that a process has mapped and touched while loading: they count in its resident size until reclaimed.

    Formula: parameters times the checkpoint's bytes; with a pre-quantised checkpoint the packed size.  Shared by the processes
    of a node, and reclaimable.  Source: safetensors maps its files (memmap); resident size counts touched file pages.
    """
    if job.recipe.numerics.quantization == "gptq-int4":
        rest = job.counts.total - job.counts.quantizable
        return job.counts.quantizable * 0.55 + rest * 2
    return job.counts.total * DTYPE_BYTES[job.model.checkpoint_dtype]


def pinned_bytes(job: Job, exact_bytes: Number) -> Number:
    """Bytes that a pinned allocation of ``exact_bytes`` really takes.

    torch's pinned allocator rounds each block up to a power of two.  Source: torch 2.13 ATen/core/CachingHostAllocator.h,
    measured 1.78x for 2.25 GiB.  DeepSpeed allocates its flat buffers one by one, so each is rounded.
    """
    return ceil_pow2(exact_bytes) if job.stack.pinned_rounding == "power_of_two" else exact_bytes


def offloaded_optimizer_bytes(job: Job) -> Number:
    """fp32 masters, gradients and two moments of this process's partition, in host RAM.

    Formula: 4 buffers of 4 bytes per parameter of the partition, each rounded as pinned memory is; under stage 3 split into
    sub-groups of 1e9
    parameters first.  NVMe keeps two sub-groups in RAM.  Source: DeepSpeed 0.19 zero/stage_1_and_2.py, zero/stage3.py; its
    estimator says 16 bytes per parameter before its factor of 1.5.
    """
    recipe = job.recipe
    if not recipe.offloads_optimizer:
        return 0
    partition = job.trained / job.optimizer_shards
    # A sub-group of whole tensors ends below the limit: this many full ones and a remainder of the same total.
    groups = maximum(1, ceil_div(partition, _SUB_GROUP_PARAMS)) if recipe.sharding == "zero3" else 1
    if recipe.offloads_to_nvme:
        groups_in_ram = minimum(groups, 2)
        return groups_in_ram * 4 * pinned_bytes(job, 4 * partition / groups)
    return groups * 4 * pinned_bytes(job, 4 * partition / groups)


def upload_buffer_bytes(job: Job) -> Number:
    """16-bit buffer from which updated weights are sent back to the GPU, stages 1 and 2 with an offloaded optimizer.

    Formula: 2 bytes per parameter of the partition.  Source: DeepSpeed 0.19 zero/stage_1_and_2.py (since 2025-05, #7307).
    """
    recipe = job.recipe
    if not recipe.offloads_optimizer or recipe.sharding == "zero3":
        return 0
    return pinned_bytes(job, 2 * job.trained / job.optimizer_shards)


def offloaded_parameter_bytes(job: Job) -> Number:
    """16-bit weight shards in host RAM, frozen ones included, when parameters are offloaded.

    Source: DeepSpeed 0.19 zero/stage3.py (lp_param_buffer per sub-group).
    """
    if not job.recipe.offloads_params or job.recipe.offloads_to_nvme:
        return 0
    partition = job.counts.total / job.hardware.world_size
    groups = maximum(1, ceil_div(partition, _SUB_GROUP_PARAMS))
    return groups * pinned_bytes(job, job.regime.compute * partition / groups)


def offloaded_activation_bytes(job: Job) -> Number:
    """Block inputs that checkpointing keeps in pinned host RAM instead of on the GPU, each rounded as pinned memory is."""
    if job.recipe.offload != "activations":
        return 0
    boundary = job.tokens * job.model.hidden_size * job.regime.residual
    return job.model.n_layers * pinned_bytes(job, boundary)


def paged_host_bytes(job: Job, paged_bytes: Number) -> Number:
    """Host pages behind a paged optimizer: managed memory can be evicted whole, so RAM must be able to take it."""
    del job
    return paged_bytes


def predict_host(job: Job, paged_bytes: Number) -> HostPrediction:
    """Host RAM per process and per node.  Mapped checkpoint files are shared by the processes of a node and counted once."""
    host = job.hardware.host
    mapped = mapped_checkpoint_bytes(job)
    private = (
        HostTerm("process", process_baseline_bytes(job), "planner.memory.host:process_baseline_bytes"),
        HostTerm(
            "offloaded_optimizer", offloaded_optimizer_bytes(job), "planner.memory.host:offloaded_optimizer_bytes", pinned=True
        ),
        HostTerm("upload_buffer", upload_buffer_bytes(job), "planner.memory.host:upload_buffer_bytes", pinned=True),
        HostTerm(
            "offloaded_parameters", offloaded_parameter_bytes(job), "planner.memory.host:offloaded_parameter_bytes", pinned=True
        ),
        HostTerm(
            "offloaded_activations",
            offloaded_activation_bytes(job),
            "planner.memory.host:offloaded_activation_bytes",
            pinned=True,
        ),
        HostTerm("paged_optimizer", paged_host_bytes(job, paged_bytes), "planner.memory.host:paged_host_bytes"),
    )
    mapping = HostTerm(
        "mapped_checkpoint", mapped, "planner.memory.host:mapped_checkpoint_bytes", detail="shared on a node, reclaimable"
    )
    own: Number = sum(term.n_bytes for term in private)
    # Once training runs, file pages are reclaimed under pressure; while loading, they and the early buffers coexist.
    loading = process_baseline_bytes(job) + offloaded_parameter_bytes(job) + mapped
    per_process = maximum(own, loading)
    per_node = maximum(own * job.hardware.gpus_per_node, own * job.hardware.gpus_per_node - own + loading)
    return HostPrediction((*private, mapping), per_process, per_node, host.memory_bytes)


MIN_REPORTED_BYTES = MIB
