"""Bytes of host RAM: per process and per node."""

from __future__ import annotations

from collections.abc import Callable

from planner.arrays import ceil_div, ceil_pow2, maximum, minimum
from planner.domain.prediction import HostPrediction
from planner.domain.recipe import DTYPE_BYTES, Number
from planner.domain.term import HostTerm
from planner.memory.job import Job
from planner.memory.optimizer import SUB_GROUP_PARAMS
from planner.memory.weights import quantized_weight_bytes

_HERE = "planner.memory.host"


def process_baseline_bytes(job: Job) -> float:
    """Resident bytes of a process that has imported the libraries, opened a CUDA context and tokenised a small data set.

    Coefficient ``host_process_bytes``.  Source: :class:`planner.domain.coefficients.Coefficients`.
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


def _offload_bytes(job: Job, exact_bytes: Number) -> Number:
    """Bytes of an offload buffer: pinned, and rounded as pinned memory is, where ``pin_memory`` says so."""
    return pinned_bytes(job, exact_bytes) if job.stack.pins_offload else exact_bytes


def _pins_masters(job: Job) -> bool:
    """Whether masters of stages 1 and 2 are pinned: never, always, or as ``pin_memory`` says, by the version of DeepSpeed."""
    choice = job.stack.pins_masters
    return job.recipe.sharding != "zero3" and (choice == "always" or (choice == "as_set" and job.stack.pins_offload))


def offloaded_optimizer_bytes(job: Job) -> Number:
    """fp32 masters and two moments of this process's partition, in host RAM.

    Formula: 12 bytes per parameter of the partition; masters of stages 1 and 2 that are pinned (switch ``pins_masters``) are
    rounded as pinned memory is.  NVMe keeps two sub-groups of 1e9 parameters in RAM.  Source: DeepSpeed 0.12-0.19 zero/stage3.py
    _create_fp32_partitions, zero/stage_1_and_2.py (single_partition_of_fp32_groups); moments are plain tensors of its CPU Adam.
    """
    recipe = job.recipe
    if not recipe.offloads_optimizer:
        return 0
    partition = job.trained / job.optimizer_shards
    if recipe.offloads_to_nvme:
        return 12 * minimum(partition, 2 * SUB_GROUP_PARAMS)
    masters = pinned_bytes(job, 4 * partition) if _pins_masters(job) else 4 * partition
    return masters + 8 * partition


def offloaded_gradient_bytes(job: Job) -> Number:
    """Gradients of this process's partition in host RAM, pinned where ``pin_memory`` says so (switch ``pins_offload``).

    Formula: 4 bytes per parameter, in one buffer under stages 1 and 2, in sub-groups of at most 1e9 parameters under stage 3,
    which also keeps one flat buffer in the gradient's own dtype.  Source: DeepSpeed 0.19 zero/stage3.py
    (subgroup_gradient_buffer, grad_partitions_flat_buffer), zero/stage_1_and_2.py (single_grad_partition).
    """
    recipe = job.recipe
    if not recipe.offloads_optimizer:
        return 0
    partition = job.trained / job.optimizer_shards
    if recipe.sharding != "zero3":
        return _offload_bytes(job, 4 * partition)
    groups = maximum(1, ceil_div(partition, SUB_GROUP_PARAMS))
    in_ram = minimum(groups, 2) if recipe.offloads_to_nvme else groups
    return in_ram * _offload_bytes(job, 4 * partition / groups) + _offload_bytes(job, job.regime.gradient * partition)


def upload_buffer_bytes(job: Job) -> Number:
    """16-bit copy of updated weights on their way back to the GPU, stages 1 and 2 with an offloaded optimizer.

    Formula: 2 bytes per parameter of the partition: a buffer that stays, or a temporary of the cast on the host; none where the
    cast is done on the GPU (switch ``zero12_upload``, and :func:`planner.memory.optimizer.optimizer_temporary_bytes`).
    Source: DeepSpeed zero/stage_1_and_2.py step: 0.12.6, 0.14.1, 0.17.0 (#7307) and 0.19.8 differ.
    """
    recipe, way = job.recipe, job.stack.zero12_upload
    if not recipe.offloads_optimizer or recipe.sharding == "zero3" or way == "fp32_on_gpu":
        return 0
    exact: Number = 2 * job.trained / job.optimizer_shards
    return _offload_bytes(job, exact) if way == "buffer_on_host" else exact


def offloaded_parameter_bytes(job: Job) -> Number:
    """16-bit weight shards in host RAM, frozen ones included, when parameters are offloaded; k-bit ones as they are stored.

    k-bit matrices that the engine cannot divide stay on the GPU.  Pinned whatever ``pin_memory`` says.  Source: DeepSpeed
    0.12-0.19 zero/stage3.py _create_param_groups_fp16_flat_cpu_memory.
    """
    if not job.recipe.offloads_params or job.recipe.offloads_to_nvme:
        return 0
    plain = job.counts.total - (job.counts.quantizable if job.regime.quantized else 0)
    stored: Number = job.regime.compute * plain / job.hardware.world_size
    if job.regime.quantized and job.recipe.divides_base:
        stored = stored + quantized_weight_bytes(job)
    groups = maximum(1, ceil_div(plain / job.hardware.world_size, SUB_GROUP_PARAMS))
    return groups * pinned_bytes(job, stored / groups)


def offloaded_activation_bytes(job: Job) -> Number:
    """Block inputs that checkpointing keeps in pinned host RAM instead of on the GPU, each rounded as pinned memory is.

    Source: unsloth 2026.10 models/llama.py (use_gradient_checkpointing); torch 2.13 CachingHostAllocator rounds to powers of two.
    """
    if job.recipe.offload != "activations":
        return 0
    boundary = job.tokens * job.model.hidden_size * job.regime.residual
    return job.model.n_layers * pinned_bytes(job, boundary)


def paged_host_bytes(job: Job, paged_bytes: Number) -> Number:
    """Host pages behind a paged optimizer: managed memory can be evicted whole, so RAM must be able to take it.

    Source: CUDA programming guide, unified memory; bitsandbytes 0.50 functional.py get_paged.
    """
    del job
    return paged_bytes


def _term(name: str, n_bytes: Number, formula: Callable[..., Number], *, pinned: bool = False) -> HostTerm:
    return HostTerm(name, n_bytes, f"{_HERE}:{formula.__name__}", pinned=pinned)


def predict_host(job: Job, paged_bytes: Number) -> HostPrediction:
    """Host RAM per process and per node.  Mapped checkpoint files are shared by the processes of a node and counted once."""
    host = job.hardware.host
    mapped = mapped_checkpoint_bytes(job)
    pins = job.stack.pins_offload
    buffered = job.stack.zero12_upload == "buffer_on_host"
    private = (
        _term("process", process_baseline_bytes(job), process_baseline_bytes),
        _term("offloaded_optimizer", offloaded_optimizer_bytes(job), offloaded_optimizer_bytes, pinned=_pins_masters(job)),
        _term("offloaded_gradients", offloaded_gradient_bytes(job), offloaded_gradient_bytes, pinned=pins),
        _term("upload_buffer", upload_buffer_bytes(job), upload_buffer_bytes, pinned=pins and buffered),
        _term("offloaded_parameters", offloaded_parameter_bytes(job), offloaded_parameter_bytes, pinned=True),
        _term("offloaded_activations", offloaded_activation_bytes(job), offloaded_activation_bytes, pinned=True),
        _term("paged_optimizer", paged_host_bytes(job, paged_bytes), paged_host_bytes),
    )
    mapping = HostTerm(
        "mapped_checkpoint",
        mapped,
        f"{_HERE}:mapped_checkpoint_bytes",
        detail="shared on a node, reclaimable",
        reclaimable=True,
    )
    own: Number = sum(term.n_bytes for term in private)
    # Once training runs, file pages are reclaimed under pressure; while loading, they and the early buffers coexist.
    early = process_baseline_bytes(job) + offloaded_parameter_bytes(job)
    gpus = job.hardware.gpus_per_node
    return HostPrediction(
        terms=(*private, mapping),
        per_process_bytes=maximum(own, early + mapped),
        per_node_bytes=maximum(own * gpus, early * gpus + mapped),
        required_per_node_bytes=own * gpus,
        available_bytes=host.memory_bytes,
    )
