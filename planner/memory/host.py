"""Bytes of host RAM: per process and per node."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from planner.anatomy.packing import constants_bytes, stored_bytes
from planner.arrays import ceil_div, ceil_pow2, is_zero, maximum, minimum, where
from planner.domain.prediction import HostPrediction
from planner.domain.recipes.optimizers import OPTIMIZER_FACTS
from planner.domain.recipes.recipe import DTYPE_BYTES, Number
from planner.domain.term import HostTerm
from planner.memory.flat_parts import flat_parts
from planner.memory.host_experts import (
    host_activation_bytes,
    host_adapter_bytes,
    host_buffer_bytes,
    host_weight_bytes,
)
from planner.memory.outside import paged_bytes
from planner.program.engines.zero.deepspeed_settings import settings_of
from planner.program.host_copies import WAITING, copies_to_host
from planner.program.job import Job
from planner.program.load import loader_places
from planner.program.ops.sizes import unit_values
from planner.program.parameters import Parameters


def process_baseline_bytes(job: Job) -> float:
    """Resident bytes of a process that has imported the libraries,
    opened a CUDA context and tokenised a small data set.

    Coefficient ``host_process_bytes``.
    Source: :class:`planner.domain.uncertainty.coefficients.Coefficients`.
    """
    return job.coefficients.host_process_bytes


def mapped_checkpoint_bytes(job: Job) -> Number:
    """Checkpoint files that a process has mapped and touched while loading:
    they count in its resident size until reclaimed.

    Formula: parameters times the checkpoint's bytes; with a pre-quantised checkpoint the packed size.  Shared
    by the processes of a node, and reclaimable.  Source: safetensors maps its files (memmap); resident size
    counts touched file pages.
    """
    numerics, whole = job.recipe.numerics, DTYPE_BYTES[job.model.checkpoint_dtype]
    held: Number = job.base_params * whole
    if numerics.arrives_packed:
        held = stored_bytes(numerics, job.packed) + (job.base_params - job.packed.elements) * whole
    return held * job.model.parts


def loaded_weights_bytes(job: Job) -> Number:
    """Weights in fp32 that each process makes of 16-bit files in host RAM, and holds until they move to the
    card.

    Formula: 4 bytes for each parameter.  None where the loader brings them to the card itself; of the files'
    own dtype their mapped pages are the weights.
    Source: transformers 5.23 core_model_loading.py (each tensor ``.to`` the dtype); a real model of 267
    million parameters: 1,018 MiB of anonymous memory in fp32, 9 MiB in the dtype of its files.
    Ignored: fp16 of bf16 files, as few loaders leave that in host RAM; FSDP, where a launch file may leave
    the loading to the first process; a second model; copies of Transformers 4 in the files' dtype.
    """
    wide = job.recipe.numerics.load_dtype == "fp32" != job.model.checkpoint_dtype
    if not wide or not job.stack.runs_trainer or loader_places(job) or job.recipe.sharding.gathers_weights:
        return 0
    return job.base_params * DTYPE_BYTES["fp32"]


def pinned_bytes(exact_bytes: Number) -> Number:
    """Bytes that a pinned allocation of ``exact_bytes`` really takes.

    torch's pinned allocator rounds each block up to a power of two.  Source: torch 2.13
    ATen/core/CachingHostAllocator.h, measured 1.78x for 2.25 GiB.
    """
    return ceil_pow2(exact_bytes)


def _frozen(job: Job) -> Iterable[Parameters]:
    """Parameters that no optimizer has and that the engine divides, which are no k-bit ones of bytes."""
    divides = job.recipe.divides_base
    frozen = (each for each in job.parameters if not each.weight.trained)
    return (each for each in frozen if divides or not each.weight.packed)


def _parts_bytes(job: Job, kinds: Iterable[Parameters], *, pinned: bool) -> Number:
    """This process's part of each parameter, pinned and rounded by itself or not.

    Under ZeRO-3 parameters below the persistence threshold stay on the GPU.
    Source: DeepSpeed 0.19.8 zero/partition_parameters.py _partition_param (``pin_memory`` of each
    ``ds_tensor``); torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py (``sharded_param.pin_memory``).
    """
    shards = job.recipe.shards(job.hardware)
    total: Number = 0
    persists = settings_of(job).persistence if job.recipe.sharding.is_zero3 else 0
    for each in kinds:
        elements = job.elements(each)
        if pinned:
            part = pinned_bytes(ceil_div(elements, shards) * each.element_bytes)
        else:
            part = elements * each.element_bytes / job.hardware.world_size
        total = total + where(elements > persists, each.count * part, 0)
    return total


def _fsdp_parts_bytes(job: Job, kinds: Iterable[Parameters], *, trained: bool) -> Number:
    """This process's part of each parameter, or of each flat one of FSDP1, pinned."""
    if not job.recipe.sharding.is_fsdp1:
        return _parts_bytes(job, kinds, pinned=True)
    parts = (n_bytes for n_bytes, is_trained in flat_parts(job) if is_trained == trained)
    return sum(map(pinned_bytes, parts))


def _offload_bytes(job: Job, exact_bytes: Number) -> Number:
    """Bytes of an offload buffer: pinned, and rounded as pinned memory is, where ``pin_memory`` says so."""
    return pinned_bytes(exact_bytes) if job.stack.pins_offload else exact_bytes


def _pins_masters(job: Job) -> bool:
    """Whether masters of stages 1 and 2 are pinned: never, always, or as ``pin_memory`` says,
    by the version of DeepSpeed.
    """
    choice = job.stack.pins_masters
    return not job.recipe.sharding.is_zero3 and (
        choice == "always" or (choice == "as_set" and job.stack.pins_offload)
    )


def offloaded_optimizer_bytes(job: Job) -> Number:
    """fp32 masters and the optimizer's states of this process's partition, in host RAM.

    Formula: per parameter of the partition 4 bytes for its master and 4 for each state, two of AdamW; states
    in 8 bits have a byte each, and four for 256 of them (bitsandbytes 0.50.2 optim/optimizer.py).  Masters of
    stages 1 and 2 that are pinned (switch ``pins_masters``) are rounded as pinned memory is.  NVMe keeps two
    sub-groups in RAM, each at least one parameter.  Source: DeepSpeed 0.12-0.19 zero/stage3.py
    _create_fp32_partitions, zero/stage_1_and_2.py (single_partition_of_fp32_groups); states are plain
    tensors.  FSDP has no masters: the trained shards themselves are there, each pinned by itself, and states
    in their dtype.  Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py (``offload_to_cpu``,
    ``pin_memory``).
    """
    recipe = job.recipe
    if not recipe.offloads_optimizer:
        return 0
    if recipe.uses_fsdp:
        trained = job.trained_parameters
        states = _n_states(job) * _parts_bytes(job, trained, pinned=False)
        return _fsdp_parts_bytes(job, trained, trained=True) + states
    partition = job.trained / job.optimizer_shards
    if recipe.offloads_to_nvme:
        largest = maximum(*(job.elements(each) for each in job.trained_parameters)) / job.optimizer_shards
        return 12 * minimum(partition, 2 * maximum(settings_of(job).sub_group, largest))
    masters = pinned_bytes(4 * partition) if _pins_masters(job) else 4 * partition
    element_bytes = 4 if OPTIMIZER_FACTS[recipe.optimizer].bits == 32 else 1 + 4 / 256
    return masters + _n_states(job) * element_bytes * partition


def _n_states(job: Job) -> int:
    """States of an element of a flat partition, whose squares Adafactor cannot sum by rows and columns."""
    optimizer = job.recipe.optimizer
    return 1 if optimizer == "adafactor" else sum(OPTIMIZER_FACTS[optimizer].state_elements)


def offloaded_gradient_bytes(job: Job) -> Number:
    """Gradients of this process's partition in host RAM,
    pinned where ``pin_memory`` says so (switch ``pins_offload``).

    Formula: stages 1 and 2: :func:`_gradients_of_stages_1_and_2`.  Stage 3: 4 bytes per parameter, in
    sub-groups, and one flat buffer in the gradient's own dtype.  FSDP: one pinned tensor for each trained
    shard, in its dtype; FSDP1 has one for each frozen shard, too (_flat_param.py init_flat_param_attributes,
    ``_cpu_grad``).
    Source: DeepSpeed 0.19 zero/stage3.py (subgroup_gradient_buffer, grad_partitions_flat_buffer); torch 2.13
    distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce (``new_sharded_grad`` to the CPU).
    """
    recipe = job.recipe
    if not recipe.offloads_optimizer:
        return 0
    if recipe.uses_fsdp:
        frozen = _fsdp_parts_bytes(job, (), trained=False)
        return _fsdp_parts_bytes(job, job.trained_parameters, trained=True) + frozen
    partition = job.trained / job.optimizer_shards
    if not recipe.sharding.is_zero3:
        return _gradients_of_stages_1_and_2(job)
    # A sub-group ends with the parameter that fills it: there are no more of them than parameters.
    n_trained: Number = sum(each.count for each in job.trained_parameters)
    groups = maximum(1, minimum(n_trained, ceil_div(partition, maximum(1, settings_of(job).sub_group))))
    in_ram = minimum(groups, 2) if recipe.offloads_to_nvme else groups
    return in_ram * _offload_bytes(job, 4 * partition / groups) + _offload_bytes(
        job, job.regime.gradient * partition
    )


def _gradients_of_stages_1_and_2(job: Job) -> Number:
    """4 bytes per parameter of the partition, the largest gradient once,
    and with accumulation each own gradient by itself.

    Formula: the last two in the gradient's own dtype.  Source: DeepSpeed 0.19.8 zero/stage_1_and_2.py
    (single_grad_partition, temp_grad_buffer_for_cpu_offload, accumulated_grads_in_cpu:
    async_accumulate_grad_in_cpu_via_gpu); two real processes.
    Ignored: the partition has a buffer for each group of the optimizer;
    tensors on the border of a partition are kept whole.
    """
    flat = _offload_bytes(job, 4 * job.trained / job.optimizer_shards)
    own: Number = 0
    for each in job.trained_parameters:
        gradient = _offload_bytes(job, job.elements(each) * job.regime.gradient)
        own = own + each.count * gradient / job.optimizer_shards
    return (
        flat
        + _offload_bytes(job, offload_staging_bytes(job))
        + where(job.recipe.batch.grad_accum > 1, own, 0)
    )


def offload_staging_bytes(job: Job) -> Number:
    """Bytes of the buffer through which stages 1 and 2 send gradients to an offloaded optimizer:
    one on the GPU, one in host RAM.

    Formula: the largest trained tensor in the gradient's dtype.  Source: DeepSpeed 0.12-0.19
    zero/stage_1_and_2.py (temp_grad_buffer_for_gpu_offload, temp_grad_buffer_for_cpu_offload).
    """
    return maximum(0, *(job.elements(each) for each in job.trained_parameters)) * job.regime.gradient


def upload_buffer_bytes(job: Job) -> Number:
    """16-bit copy of updated weights on their way back to the GPU,
    stages 1 and 2 with an offloaded optimizer.

    Formula: 2 bytes per parameter of the partition: a buffer that stays, or a temporary of the cast on the
    host.  None where the cast is done on the GPU (switch ``zero12_upload``).
    Source: DeepSpeed zero/stage_1_and_2.py step: 0.12.6, 0.14.1, 0.17.0 (#7307) and 0.19.8 differ.
    """
    recipe, way = job.recipe, job.stack.zero12_upload
    if not recipe.offloads_optimizer or not recipe.sharding.is_zero12 or way == "fp32_on_gpu":
        return 0
    exact: Number = 2 * job.trained / job.optimizer_shards
    return _offload_bytes(job, exact) if way == "buffer_on_host" else exact


def offloaded_parameter_bytes(job: Job) -> Number:
    """Weight shards in host RAM when parameters are offloaded, as they are stored;
    k-bit ones of bytes stay on the GPU.

    Formula: each frozen parameter's part by itself, pinned where ``pin_memory`` says so; ZeRO-3 moves the
    trained parts into one buffer that is pinned in any case.  FSDP pins each frozen part, and its trained
    ones are in :func:`offloaded_optimizer_bytes`.
    Source: DeepSpeed 0.19.8 zero/partition_parameters.py _partition_param, zero/stage3.py
    _create_param_groups_fp16_flat_cpu_memory; torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py; two
    real processes.
    Parts of a second copy (hpZ) are there, too.
    Ignored: parameters without weight decay have a buffer of their own.
    """
    recipe = job.recipe
    if not recipe.offloads_params or recipe.offloads_to_nvme:
        return 0
    if recipe.uses_fsdp:
        return _fsdp_parts_bytes(job, _frozen(job), trained=False)
    frozen = _parts_bytes(job, _frozen(job), pinned=job.stack.pins_offload)
    trained = pinned_bytes(job.trained_weight_bytes / job.hardware.world_size)
    return frozen + trained + _second_copy_bytes(job)


def _second_copy_bytes(job: Job) -> Number:
    """This process's part of the second copy of each parameter, small ones as well.

    Source: DeepSpeed 0.19.8 zero/partition_parameters.py _partition_param_sec (``remote_device``).
    """
    hpz = job.recipe.parallel.hpz
    if hpz == 1:
        return 0
    kinds = (*_frozen(job), *job.trained_parameters)
    parts = ((each.count, ceil_div(job.elements(each), hpz) * each.element_bytes) for each in kinds)
    return sum(count * _offload_bytes(job, part) for count, part in parts)


def pinned_cache_bytes(job: Job) -> Number:
    """Pinned blocks that torch keeps for requests of their own size:
    trained parts before ZeRO-3 moved them into one buffer.

    Source: DeepSpeed 0.19.8 zero/stage3.py _create_param_groups_fp16_flat_cpu_memory; torch 2.13
    ATen/core/CachingHostAllocator.h (one free list for each power of two); two real processes.
    """
    recipe = job.recipe
    if (
        not recipe.sharding.is_zero3
        or not recipe.offloads_params
        or recipe.offloads_to_nvme
        or not job.stack.pins_offload
    ):
        return 0
    return _parts_bytes(job, job.trained_parameters, pinned=True)


def offloaded_activation_bytes(job: Job) -> Number:
    """Saved tensors that wait in host RAM instead of on the GPU,
    each rounded as pinned memory is where a stack pins them (``pins_inputs``).

    Where it pins only what there is room for, rounding takes no more than the host has left.
    Source: unsloth_zoo 2026.10.9 gradient_checkpointing.py:1337-1547 (every layer's in the first pass),
    :141-190 and :271 _block_fits_host_ram; torch 2.13 CachingHostAllocator rounds to powers of two.
    """
    if not job.recipe.offloads_activations:
        return 0
    copies = copies_to_host(job, unit_values(job), WAITING)
    exact: Number = sum(count * n_bytes for count, n_bytes in copies)
    pinned: Number = sum(count * pinned_bytes(n_bytes) for count, n_bytes in copies)
    if job.stack.pins_inputs == "never":
        return exact
    available = job.hardware.host.memory_bytes
    if job.stack.pins_inputs == "always" or available is None:
        return pinned
    room = available / job.hardware.gpus_per_node - process_baseline_bytes(job)
    return minimum(pinned, maximum(exact, room))


def saved_copy_bytes(job: Job) -> Number:
    """Weights that each process copies to the host to write a checkpoint, under DeepSpeed's stages 0 to 2.

    Formula: every tensor of the module as it lies on the GPU, frozen ones too, whatever is then written; on
    every process, not only on the one that writes.  0 where the stack does not save so (switch
    ``saves_through_host``).
    Source: transformers 4.37 and 5.23 trainer.py save_model; accelerate 0.25 and 1.15 accelerator.py
    get_state_dict (``clone_tensors_for_torch_save``); deepspeed 0.19.8 checkpoint/utils.py (to the CPU).
    Ignored: stage 3, whose first process gathers 16-bit weights where its file says so
    (``stage3_gather_16bit_weights_on_model_save``), of adapters alone in Transformers 5; engines other
    than DeepSpeed.
    """
    if not job.recipe.sharding.is_zero012 or not job.stack.saves_through_host:
        return 0
    whole: Number = sum(each.count * job.elements(each) * each.element_bytes for each in job.parameters)
    return whole + sum(constants_bytes(job.recipe.numerics, job.packed))


_TERMS: dict[str, Callable[[Job], Number]] = {
    "process": process_baseline_bytes,
    "offloaded_optimizer": offloaded_optimizer_bytes,
    "offloaded_gradients": offloaded_gradient_bytes,
    "upload_buffer": upload_buffer_bytes,
    "offloaded_parameters": offloaded_parameter_bytes,
    "pinned_cache": pinned_cache_bytes,
    "offloaded_activations": offloaded_activation_bytes,
    "paged_optimizer": paged_bytes,
    "expert_weights": host_weight_bytes,
    "expert_adapters": host_adapter_bytes,
    "expert_activations": host_activation_bytes,
    "expert_buffers": host_buffer_bytes,
    "saved_copy": saved_copy_bytes,
    "loaded_weights": loaded_weights_bytes,
    "mapped_checkpoint": mapped_checkpoint_bytes,
}
"""Terms of the report, and what writes each of them down."""
_EXPERTS = tuple(name for name in _TERMS if name.startswith("expert_"))
"""Those that one process has, of all nodes."""
_EARLY = ("process", "offloaded_parameters", "pinned_cache", "loaded_weights")
_DETAILS = {
    "saved_copy": "while a checkpoint is saved",
    "loaded_weights": "while the model is loaded",
    "mapped_checkpoint": "shared on a node, reclaimable",
    **dict.fromkeys(_EXPERTS, "in one process"),
}


def _is_pinned(job: Job, name: str) -> bool:
    pins, fsdp = job.stack.pins_offload, job.recipe.uses_fsdp
    buffered = job.stack.zero12_upload == "buffer_on_host"
    depends = {
        "offloaded_optimizer": fsdp or _pins_masters(job),
        "offloaded_gradients": fsdp or pins,
        "upload_buffer": pins and buffered,
        "offloaded_activations": job.stack.pins_inputs != "never",
    }
    return depends.get(name, name in ("offloaded_parameters", "pinned_cache"))


def predict_host(job: Job) -> HostPrediction:
    """Host RAM per process and per node.
    Mapped checkpoint files are shared by the processes of a node and counted once, and so are experts, which
    are those of the process that needs the most.
    """
    held, gpus = {name: formula(job) for name, formula in _TERMS.items()}, job.hardware.gpus_per_node
    saved, mapped = held["saved_copy"], held["mapped_checkpoint"]
    own: Number = sum(n_bytes for name, n_bytes in held.items() if name not in _DETAILS)
    # Once training runs, file pages are reclaimed under pressure; while loading,
    # they and the early buffers coexist.
    early: Number = sum(held[name] for name in _EARLY)
    once: Number = sum(held[name] for name in _EXPERTS)
    shared = held["expert_weights"] + mapped
    return HostPrediction(
        terms=tuple(
            HostTerm(
                name,
                n_bytes,
                f"{_TERMS[name].__module__}:{_TERMS[name].__name__}",
                pinned=_is_pinned(job, name),
                detail=_DETAILS.get(name, ""),
            )
            for name, n_bytes in held.items()
            if not is_zero(n_bytes)
        ),
        per_process_bytes=maximum(own + once + saved, early + shared),
        per_node_bytes=maximum((own + saved) * gpus + once, early * gpus + shared),
        setup_per_process_bytes=early + shared,
        setup_per_node_bytes=early * gpus + shared,
        steps_per_process_bytes=own + once,
        steps_per_node_bytes=own * gpus + once,
        required_per_node_bytes=maximum((own + saved) * gpus + once, early * gpus),
        available_bytes=job.hardware.host.memory_bytes,
    )
