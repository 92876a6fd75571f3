"""Bytes that sharded training needs beyond its shards: buckets, gathered parameters, persistent small tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.anatomy.adapters import adapter_shapes
from planner.anatomy.parameters import is_quantizable
from planner.arrays import maximum, minimum, where
from planner.domain.recipe import Number
from planner.program.job import Job

# DeepSpeed's own defaults, in elements.  Source: DeepSpeed 0.19 runtime/zero/config.py.
_REDUCE_BUCKET = 500_000_000
_PREFETCH_BUCKET = 50_000_000
MAX_LIVE_PARAMS = 1_000_000_000


def reduce_bucket_elements(job: Job) -> int:
    """Elements of ZeRO's gradient bucket: what the stack's template sets, hidden squared for ``auto``, else DeepSpeed's 5e8.

    Source: transformers 5.23 integrations/deepspeed.py trainer_config_finalize; DeepSpeed 0.19 runtime/zero/config.py; the
    switches ``zero_auto_buckets`` (stage 3) and ``zero12_bucket_elements`` (stages 1 and 2) of the stack.
    """
    hidden_squared = job.model.hidden_size**2
    if job.recipe.sharding.is_zero3:
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


def early_bucket_bytes(job: Job) -> Number:
    """Bytes of gradient buckets that lie beside the logits while the loss runs backward; 0 where they are made after that.

    Formula: :func:`gradient_bucket_bytes` under stages 1 and 2 where the switch ``zero12_early_buckets`` is on.
    Source: DeepSpeed 0.12.6 zero/stage_1_and_2.py backward (``ipg_buffer``); 0.18.3 and later make them in the first hook of a
    gradient (setup_buckets).
    """
    early = job.stack.zero12_early_buckets and job.recipe.sharding.is_zero12
    return gradient_bucket_bytes(job) if early else 0


def kept_bucket_bytes(job: Job) -> Number:
    """Bytes of gradient buckets that stay from one micro-step to the next; 0 but under stage 1 with accumulation.

    Formula: :func:`gradient_bucket_bytes`, because buckets go where gradients are reduced, after the last micro-step.
    Source: DeepSpeed 0.19.8 zero/stage_1_and_2.py process_gradients (setup_buckets), independent_gradient_partition_epilogue;
    engine.py allreduce_gradients; found by tracing.
    """
    if not job.recipe.sharding.is_zero1:
        return 0
    return where(job.recipe.batch.grad_accum > 1, gradient_bucket_bytes(job), 0)


def bucket_count(job: Job) -> int:
    """Gradient buckets: one under stage 3; under stages 1 and 2 two where reduction overlaps backward, else one.

    Source: DeepSpeed 0.12-0.19 zero/stage_1_and_2.py (a second buffer with ``overlap_comm``); the switch ``zero12_overlap``.
    """
    return 2 if job.recipe.sharding.is_zero12 and job.stack.zero12_overlap else 1


def offload_staging_bytes(job: Job) -> Number:
    """Bytes of the GPU buffer through which stages 1 and 2 send gradients to an offloaded optimizer, from start to end.

    Formula: the largest trained tensor in the gradient's dtype.  Source: DeepSpeed 0.12-0.19 zero/stage_1_and_2.py
    (temp_grad_buffer_for_gpu_offload).  Its twin in host RAM is in :func:`planner.memory.host.offloaded_gradient_bytes`.
    """
    recipe = job.recipe
    if not recipe.offloads_optimizer or not recipe.sharding.is_zero12:
        return 0
    largest = job.counts.largest if recipe.method == "full" else minimum(job.trained, largest_adapter_elements(job))
    return largest * job.regime.gradient


@dataclass(frozen=True, slots=True)
class Gathered:
    """Bytes of parameters that are whole on a GPU while blocks compute, by moment.

    ``first`` and ``first_loss``: in the first pass and its loss; ``passes``: in the forward and backward of later passes;
    ``loss``: in their loss.
    """

    first: Number
    first_loss: Number
    passes: Number
    loss: Number


def gathered_parameter_bytes(job: Job) -> Gathered:
    """Bytes of parameters that are whole on a GPU while a block computes, under ZeRO-3 and FSDP.

    FSDP2: :func:`_gathered_by_fsdp2`.  ZeRO-3: :func:`_gathered_by_zero3`.  FSDP1 holds the current and the prefetched block in
    compute dtype, and the head.  Source: torch 2.13 distributed/fsdp.
    """
    regime, counts = job.regime, job.counts
    if job.recipe.sharding.is_zero3:
        return _gathered_by_zero3(job)
    if job.recipe.sharding.frees_blocks:
        return _gathered_by_fsdp2(job)
    if job.recipe.uses_fsdp:
        n_bytes = 2 * min(counts.block_largest, divided_float_params(job)) * regime.compute + _ends_bytes(job)
        return Gathered(n_bytes, n_bytes, n_bytes, n_bytes)
    return Gathered(0, 0, 0, 0)


def _ends_bytes(job: Job) -> int:
    """Bytes of the head in the compute dtype, or of the table that is tied to it and comes with it."""
    ends = job.model.token_embedding.param_count if job.model.tied else job.counts.head
    return ends * job.regime.compute


def _gathered_by_fsdp2(job: Job) -> Gathered:
    """Bytes of parameters that FSDP2 holds whole.

    While blocks compute, two of them: the one at work, and the buffer of the one before it (forward) or after it (backward).
    A table that is tied to the head stays from the first layer to the end.  In the loss the head, and no
    block; what lies beside it until the forward ends is :func:`received_buffer_bytes`.
    Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py wait_for_unshard, post_forward (``reshard``),
    pre_backward; accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model (the units); seen in traces.
    Ignored: an untied table, whole twice before the first block, when there is nothing else yet.
    """
    ends = _ends_bytes(job)
    passes = 2 * block_unit_bytes(job) + (ends if job.model.tied else 0)
    return Gathered(passes, ends, passes, ends)


def block_unit_bytes(job: Job) -> Number:
    """Bytes that FSDP2 gathers of its largest block: floats and adapters in the compute dtype, 4-bit matrices packed.

    Formula: 4-bit bytes stored as floats (``quant_storage``) travel as they are stored; those stored as bytes stay whole and do
    not travel, like int8.  Source: accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model (``ignored_params``); torch 2.13
    distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_all_gather.
    Ignored: adapters are spread evenly over the layers.
    """
    packed = 0.5 if job.recipe.divides_base else 0
    sizes: list[Number] = []
    for group in job.model.groups:
        block = group.block
        kbit = sum(each.weight_count for each in block.linears if is_quantizable(each, job.stack.skips_experts))
        kbit = kbit if job.regime.quantized else 0
        sizes.append((block.param_count - kbit) * job.regime.compute + kbit * packed)
    return max(sizes) + job.adapter_params / max(job.model.n_layers, 1) * job.regime.adapter_seen


def received_buffer_bytes(job: Job) -> Number:
    """Bytes of the last buffer that FSDP2 received, which stays beside the logits until the forward has ended.

    Formula: the head's own where it is gathered by itself; the last block's where the head is a table gathered before.
    Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param_group.py wait_for_unshard (``all_gather_state``),
    _fsdp_state.py _post_forward; seen in traces.
    """
    if not job.recipe.sharding.frees_blocks:
        return 0
    return block_unit_bytes(job) if job.model.tied else _ends_bytes(job)


def _gathered_by_zero3(job: Job) -> Gathered:
    """Bytes of parameters that ZeRO-3 holds whole.

    In the first pass, which only records the order of modules, one parameter.  Later, prefetch goes on until
    ``max_live_parameters`` (1e9) are there, and its last parameter may be the largest of all.  Where the head comes in one buffer
    with others (:func:`head_comes_with_others`), the buffer and its copy are there before the logits.  In the loss: the head, and
    what prefetch has room for beside it.  With one process parameters stay where they are, unless they are offloaded.
    Source: DeepSpeed 0.12-0.19 zero/partitioned_param_coordinator.py fetch_sub_module, zero/partition_parameters.py
    AllGatherCoalescedHandle.wait (``torch.cat``), _no_gather_coalesced; seen in traces.
    """
    largest, floats = _largest_gathered(job), divided_float_params(job)
    live = max(MAX_LIVE_PARAMS, largest)
    ahead = where(head_comes_with_others(job), live, MAX_LIVE_PARAMS) + largest
    passes, loss = minimum(floats, ahead), minimum(floats, live + prefetch_elements(job))
    gathers = job.recipe.offloads_params or job.hardware.world_size > 1
    width = where(gathers, job.regime.compute, 0)
    return Gathered(largest * width, largest * width, passes * width, loss * width)


def divided_float_params(job: Job) -> int:
    """Parameters that the engine divides and gathers as floats: all but k-bit matrices.

    Source: DeepSpeed 0.19 zero/partition_parameters.py partitions every parameter; :mod:`planner.anatomy.parameters` counts them.
    """
    return job.counts.total - (job.counts.quantizable if job.regime.quantized else 0)


def _largest_gathered(job: Job) -> int:
    counts = job.counts
    return max(counts.head, job.model.token_embedding.param_count) if job.regime.quantized else counts.largest


def loaded_parameter_bytes(job: Job) -> Number:
    """Bytes of the largest parameter, which ZeRO-3 makes whole on every GPU before it divides it, while the model is loaded.

    Formula: its elements in the compute dtype.  Source: DeepSpeed 0.12-0.19 zero/partition_parameters.py (Init: ``partition`` is
    called when a module has been made).  Ignored: where the default dtype is fp32, as in Transformers 4 without ``torch_dtype``,
    another 4 bytes per element (zero_wrapper_for_fp_tensor_constructor casts afterwards).
    """
    return _largest_gathered(job) * job.regime.compute if job.recipe.sharding.is_zero3 else 0


def prefetch_elements(job: Job) -> float:
    """Elements that ZeRO-3 gathers ahead at a time: 0.9 x hidden squared under ``auto``, else 5e7.

    Source: transformers 5.23 integrations/deepspeed.py trainer_config_finalize; DeepSpeed 0.19 runtime/zero/config.py.
    """
    return 0.9 * job.model.hidden_size**2 if job.stack.zero_auto_buckets else _PREFETCH_BUCKET


def head_comes_with_others(job: Job) -> Any:
    """Whether prefetch gathers the head in one buffer with smaller parameters before it in the order of use, elementwise.

    So with adapters that are too large to persist, and where the last matrix of a layer does not fill the prefetch bucket.
    Source: DeepSpeed 0.12-0.19 zero/partitioned_param_coordinator.py fetch_sub_module, zero/partition_parameters.py
    all_gather_coalesced (one parameter arrives in its own memory); seen in traces.
    """
    adapter = job.recipe.adapter
    if adapter is None:
        return job.model.groups[-1].block.linears[-1].weight_count < prefetch_elements(job)
    sizes = [adapter.rank * ranks * width for ranks, width, _ in adapter_shapes(job.model, adapter.targets)]
    largest: Any = maximum(0, *sizes)
    return largest > persistence_elements(job)


def persistent_parameter_bytes(job: Job) -> Number:
    """Bytes of parameters below ZeRO-3's persistence threshold, which stay whole on every GPU.

    Formula: norms and biases, and LoRA matrices of at most 10 x hidden elements under ``auto``, 1e5 by default (rank 8 over the
    model's width is below both).  Ignored: routers above that.
    Source: DeepSpeed 0.19 runtime/zero/parameter_offload.py mark_persistent_parameters.
    """
    if not job.recipe.sharding.is_zero3:
        return 0
    total: Number = (job.counts.norms + job.counts.block_rest) * job.regime.compute
    adapter = job.recipe.adapter
    if adapter is None:
        return total
    threshold = persistence_elements(job)
    for ranks, width, count in adapter_shapes(job.model, adapter.targets):
        elements = adapter.rank * ranks * width
        total = total + where(elements <= threshold, count * elements * job.regime.adapter, 0)
    return total


def persistence_elements(job: Job) -> int:
    """Elements up to which ZeRO-3 keeps a parameter whole: 10 x hidden under ``auto``, else 1e5.

    Source: transformers 5.23 integrations/deepspeed.py trainer_config_finalize; DeepSpeed 0.19 runtime/zero/config.py
    stage3_param_persistence_threshold.
    """
    return 10 * job.model.hidden_size if job.stack.zero_auto_buckets else _PERSISTENCE


# DeepSpeed's own default, in elements.
_PERSISTENCE = 100_000


def fsdp_unsharded_gradient_bytes(job: Job) -> Number:
    """Bytes of one block's whole gradient before it is reduced, under FSDP, in compute dtype, and of the flat copy that is sent.

    Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py foreach_reduce (``reduce_scatter_input``).
    """
    if not job.recipe.uses_fsdp:
        return 0
    per_block = job.trained / max(job.model.n_layers, 1)
    return 2 * minimum(maximum(per_block, 0), job.counts.block_largest) * job.regime.compute


def largest_adapter_elements(job: Job) -> Number:
    """Elements of the largest trained tensor of a LoRA: an adapter, or all modules saved whole.  Source: the model's shapes."""
    adapter = job.recipe.adapter
    if adapter is None:
        return 0
    widest = max(max(linear.in_features, linear.out_features) for group in job.model.groups for linear in group.block.linears)
    return maximum(adapter.rank * widest, job.saved_params)
