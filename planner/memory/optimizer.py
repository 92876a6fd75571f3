"""Bytes of gradients, master weights, optimizer states and the temporaries of the step."""

from __future__ import annotations

from planner.anatomy.adapters import adapter_shapes
from planner.arrays import maximum, minimum, where
from planner.domain.model import LinearSpec
from planner.domain.recipe import Number
from planner.domain.sharding import DDP
from planner.memory.sharding import reduce_bucket_elements
from planner.program.job import Job

# Source: bitsandbytes 0.50 optim/optimizer.py: 8-bit states for tensors of at least 4096 elements, fp32 scale per 256.
_MIN_8BIT_ELEMENTS = 4096
_8BIT_BLOCK = 256
# Elements per part when stage 3 takes a gradient's norm.  Source: DeepSpeed 0.19.8 zero/stage3.py _constant_buffered_norm2.
NORM_PART_ELEMENTS = 250_000_000
_FP64_BYTES = 8

_EIGHT_BIT = ("adamw_8bit", "paged_adamw_8bit")
_PAGED = ("paged_adamw_32bit", "paged_adamw_8bit")


def gradient_bytes(job: Job) -> Number:
    """Bytes of gradients that stay on one GPU at the end of backward, before the engine gathers what the step needs.

    Formula: trained parameters times the gradient's bytes over the gradient shards; 0 where the optimizer is offloaded, because
    gradients then go to the host as they are made.  Source: DeepSpeed 0.19 zero/stage_1_and_2.py, zero/stage3.py.
    """
    if job.recipe.offloads_optimizer:
        return 0
    if job.regime.engine == "deepspeed":
        return job.trained * job.regime.gradient / job.gradient_shards
    return job.trained_weight_bytes / job.gradient_shards


def carried_gradient_bytes(job: Job) -> Number:
    """Bytes of gradients that an accumulated micro-step finds on one GPU.

    Formula: :func:`gradient_bytes`; under FSDP whole 16-bit gradients instead, because nothing is reduced before the last
    micro-step.  Source: transformers 5.23 trainer.py (``accelerator.no_sync``), accelerate 1.15 accelerator.py
    (``set_requires_gradient_sync(False)``); torch 2.13 _fsdp_param_group.py post_backward (``reduce_grads``).
    """
    if job.recipe.uses_fsdp:
        return job.trained * (job.regime.compute if job.recipe.numerics.mixed else job.regime.gradient)
    return gradient_bytes(job)


def standing_gradient_bytes(job: Job) -> Number:
    """Bytes of gradients that are there before any is made: ZeRO-3's one buffer for this process's part.

    Source: DeepSpeed 0.19.8 zero/stage3.py _setup_for_real_optimizer (``grad_partitions_flat_buffer``); found by tracing.
    """
    return gradient_bytes(job) if job.recipe.sharding.is_zero3 else 0


def offload_norm_bytes(job: Job) -> Number:
    """Bytes of the copy in which the norm of a gradient is taken on its way to the host; 0 without an offloaded optimizer.

    Formula: 8 min(largest, part) bytes (fp64), with the elements of the largest trained tensor and of this process's part.
    Under stages 1 and 2 that tensor's gradient once more where it is larger than the bucket.  Under stage 3 8 min(largest's part,
    2.5e8).
    Source: DeepSpeed 0.19.8 zero/stage_1_and_2.py set_norm_for_param_grad_in_gpu (and ``grad_reduc.detach().clone``);
    zero/stage3.py _constant_buffered_norm2.  Ignored: adapters, which are small.
    """
    recipe = job.recipe
    if not recipe.offloads_optimizer or not recipe.uses_deepspeed or recipe.method != "full":
        return 0
    largest, part = job.counts.largest, job.trained / job.optimizer_shards
    if recipe.sharding.is_zero3:
        return _FP64_BYTES * minimum(largest / job.optimizer_shards, NORM_PART_ELEMENTS)
    copied = largest * job.regime.gradient if largest > reduce_bucket_elements(job) else 0
    return _FP64_BYTES * minimum(largest, part) + copied


def step_gradient_bytes(job: Job) -> Number:
    """Bytes of gradients on one GPU while the optimizer steps.

    Formula: as at the end of backward, but under ZeRO stage 1 this process's partition only: the engine copies that and drops the
    whole gradients before the step.  Source: DeepSpeed 0.12-0.19 zero/stage_1_and_2.py independent_gradient_partition_epilogue
    (``averaged_gradients``, then ``zero_grad``).
    """
    at_end = gradient_bytes(job)
    return at_end / job.optimizer_shards if job.recipe.sharding.is_zero1 else at_end


def ddp_bucket_bytes(job: Job) -> Number:
    """Bytes of DDP's reduction buckets: a second copy of all gradients.

    Source: torch 2.13 nn/parallel/distributed.py: ``gradient_as_bucket_view`` saves exactly this and is off by default.
    """
    if job.recipe.sharding != DDP:
        return 0
    return where(job.hardware.world_size > 1, job.trained_weight_bytes, 0)


def master_weight_bytes(job: Job) -> Number:
    """Bytes of the fp32 copies that a 16-bit engine updates, over the optimizer shards; 0 when offloaded.

    Source: DeepSpeed 0.19 zero/stage_1_and_2.py (single_partition_of_fp32_groups), zero/stage3.py (fp32_partitioned_groups_flat).
    """
    if job.recipe.offloads_optimizer:
        return 0
    return 4 * job.master_params / job.optimizer_shards


def optimizer_state_bytes(job: Job) -> Number:
    """Bytes of optimizer states in the allocator's memory of one GPU (paged states are apart).

    AdamW: two states; lion and SGD: one and none; Adafactor: row and column sums.  8-bit: one byte and 4/256 per element and
    state for tensors of at least 4096 elements.  Source: torch 2.13 optim/adam.py; bitsandbytes 0.50 optim/optimizer.py.
    """
    if job.recipe.offloads_optimizer or job.recipe.optimizer in _PAGED:
        return 0
    return _state_bytes(job) / job.optimizer_shards


def paged_state_bytes(job: Job) -> Number:
    """Bytes of paged optimizer states: managed memory outside the allocator, on the GPU while there is room.

    Source: bitsandbytes 0.50 optim/optimizer.py (``get_paged`` for tensors of at least 1e5 elements).
    """
    if job.recipe.offloads_optimizer or job.recipe.optimizer not in _PAGED:
        return 0
    return _state_bytes(job) / job.optimizer_shards


def _state_bytes(job: Job) -> Number:
    optimizer = job.recipe.optimizer
    if optimizer in _EIGHT_BIT:
        return _eight_bit_state_bytes(job)
    if optimizer == "adafactor":
        return adafactor_state_bytes(job)
    states = {"adamw_torch": 2, "adamw_torch_fused": 2, "paged_adamw_32bit": 2, "lion": 1, "sgd": 0}[optimizer]
    # bitsandbytes and DeepSpeed keep 32-bit states in fp32 whatever the weights are; torch's follow the weights.
    if optimizer in ("paged_adamw_32bit", "lion") or job.regime.engine == "deepspeed":
        return job.trained * states * 4
    return states * job.trained_weight_bytes


def _eight_bit_state_bytes(job: Job) -> Number:
    """Two states of one byte plus scales where a tensor is large enough, else two fp32 states; embeddings stay fp32."""
    small, large = 2 * 4.0, 2 * (1 + 4 / _8BIT_BLOCK)
    if job.recipe.method == "full":
        counts = job.counts
        # The Trainer registers nn.Embedding for 32-bit states; biases and norms are below the threshold.
        low = counts.tables + counts.norms
        return low * small + (counts.total - low) * large
    adapter = job.recipe.adapter
    if adapter is None:
        return 0
    total: Number = job.saved_params * small
    for ranks, width, count in adapter_shapes(job.model, adapter.targets):
        elements = adapter.rank * ranks * width
        total = total + count * elements * where(elements >= _MIN_8BIT_ELEMENTS, large, small)
    return total


def adafactor_state_bytes(job: Job) -> Number:
    """Factored second moment: one fp32 per row and per column of each matrix, one per element of vectors.

    Source: transformers 5.23 optimization.py Adafactor (``exp_avg_sq_row``, ``exp_avg_sq_col``, no first moment by default).
    """
    counts = job.counts
    if job.recipe.method == "full":
        tables = job.model.token_embedding
        edges = counts.quantizable_rows + counts.quantizable_inputs + 2 * (tables.rows + tables.width)
        return 4 * (edges + counts.norms + counts.block_rest)
    adapter = job.recipe.adapter
    if adapter is None:
        return 0
    shapes = adapter_shapes(job.model, adapter.targets)
    sums: Number = (job.model.vocab_size + job.model.hidden_size) * len(adapter.modules_to_save)
    for ranks, width, count in shapes:
        sums = sums + count * (width + adapter.rank * ranks)
    return 4 * sums


def optimizer_temporary_bytes(job: Job) -> Number:
    """Bytes that the optimizer step needs beyond states and gradients, on one GPU.

    foreach AdamW: a full copy of the second moment (``_foreach_sqrt``), two before torch 2.1 (``_foreach_add`` was not in
    place). DeepSpeed: the flattened 16-bit gradients and their fp32 copy, 6 bytes per parameter of the partition; stage 3: of one
    sub-group of at most 1e9 parameters. Offloaded under stages 1 and 2: :func:`upload_staging_bytes`. Adafactor: two fp32
    tensors of the size of the largest one, four where weight and gradient are cast to fp32 first, and one of the size of the
    tensor before it. Fused, 8-bit and paged kernels: none.
    Source: torch 2.13 optim/adam.py _multi_tensor_adam; DeepSpeed 0.19 zero/stage_1_and_2.py step, zero/stage3.py
    _prepare_sub_group.
    """
    recipe, regime = job.recipe, job.regime
    if recipe.offloads_optimizer:
        return upload_staging_bytes(job)
    partition = job.trained / job.optimizer_shards
    if regime.engine == "deepspeed":
        masters = job.master_params / job.optimizer_shards
        flat = regime.gradient + 4 if regime.gradient < 4 else 4
        return flat * (minimum(masters, SUB_GROUP_PARAMS) if recipe.sharding.is_zero3 else masters)
    if recipe.optimizer == "adamw_torch":
        return job.stack.foreach_step_copies * job.trained_weight_bytes / job.optimizer_shards
    if recipe.optimizer == "adafactor":
        return _adafactor_temporary_bytes(job, partition)
    return 0


def _adafactor_temporary_bytes(job: Job, partition: Number) -> Number:
    """Bytes of Adafactor's temporaries at the tensor that needs most.

    Formula: 8 bytes per element (the update, and the one it is made from), 16 where weight and gradient are 16-bit and are cast
    first; and 4 per element of the tensor before, whose update the loop still holds.  A table is the first tensor; the
    head follows the last layer; adapters, saved modules and the matrices of a layer follow others of their size.
    Source: transformers 5.23 optimization.py Adafactor.step.
    """
    regime, adapter, counts = job.regime, job.recipe.adapter, job.counts
    if adapter is None:
        own, in_layer = (8 if regime.trained == 4 else 16), max(linear.weight_count for linear in _block_matrices(job))
        alone = own * max(job.model.token_embedding.param_count, counts.head)
        follows = 4 * in_layer if counts.head else 0
        return minimum(alone + follows, own * partition) if alone >= own * in_layer else (own + 4) * minimum(partition, in_layer)
    largest: Number = 0
    for ranks, width, _ in adapter_shapes(job.model, adapter.targets):
        largest = maximum(largest, adapter.rank * ranks * width)
    # Modules that are saved whole have the dtype of table and head, which may be wider than that of the adapters.
    of_adapter = (12 if regime.adapter == 4 else 20) * minimum(partition, largest)
    return maximum(of_adapter, (12 if regime.outside == 4 else 20) * minimum(partition, job.saved_params))


def _block_matrices(job: Job) -> tuple[LinearSpec, ...]:
    return tuple(linear for group in job.model.groups for linear in group.block.linears)


# DeepSpeed's ``sub_group_size`` default.  Source: DeepSpeed 0.19 runtime/zero/config.py.
SUB_GROUP_PARAMS = 1_000_000_000


def upload_staging_bytes(job: Job) -> Number:
    """Bytes of the fp32 tensor on the GPU through which updated weights of stages 1 and 2 come back from the host.

    Formula: 4 bytes per parameter of the partition where the switch ``zero12_upload`` is ``fp32_on_gpu``, else 0.
    Source: DeepSpeed 0.14.1 to 0.16.9 zero/stage_1_and_2.py step (``fp32_partition.to(device)``).
    """
    recipe = job.recipe
    if not recipe.offloads_optimizer or recipe.sharding.is_zero3 or job.stack.zero12_upload != "fp32_on_gpu":
        return 0
    return 4 * job.master_params / job.optimizer_shards


def step_block_bytes(job: Job) -> Number:
    """Largest single block that the DeepSpeed step allocates; 0 for other engines.

    Formula: the fp32 copy of the flattened gradients, or that of the updated weights where the optimizer is offloaded.

    Source: DeepSpeed 0.19 zero/stage_1_and_2.py step, zero/stage3.py _prepare_sub_group.
    """
    recipe = job.recipe
    if job.regime.engine != "deepspeed":
        return 0
    if recipe.offloads_optimizer:
        return upload_staging_bytes(job)
    masters = job.master_params / job.optimizer_shards
    return 4 * minimum(masters, SUB_GROUP_PARAMS) if recipe.sharding.is_zero3 else 4 * masters


def initial_block_bytes(job: Job) -> Number:
    """Bytes of the blocks that stages 1 and 2 made and freed while they were set up: cached, and used by the first passes.

    Formula: the partition of the weights copied (2 bytes) and its gradients in fp32 (4 bytes) for the step that makes the states.
    0 for other engines and where the optimizer is offloaded.
    Source: DeepSpeed 0.12.6-0.19.8 zero/stage_1_and_2.py __init__ (``clone().float()``), initialize_optimizer_states; seen in
    traces.
    """
    if not job.recipe.sharding.is_zero12 or job.recipe.offloads_optimizer:
        return 0
    return (job.regime.gradient + 4) * job.master_params / job.optimizer_shards
