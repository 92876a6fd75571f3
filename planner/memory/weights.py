"""Bytes of weights: quantised matrices, what stays unquantised, adapters, copies."""

from __future__ import annotations

from collections.abc import Iterator

from planner.anatomy.int8 import outlier_weight_bytes as outlier_bytes_of_layer
from planner.anatomy.weight_copies import is_recast
from planner.domain.model import BlockSpec, LinearSpec
from planner.domain.recipe import Number
from planner.program.job import Job

# Elements per block scale.  Source: bitsandbytes 0.50 functional.quantize_4bit (blocksize 64, nested blocksize 256).
_BLOCK = 64
_NESTED_BLOCK = 256
# Elements per scale of a published GPTQ checkpoint ("group_size": 128 in its quantize_config.json).
_GPTQ_GROUP = 128


def quantized_weight_bytes(job: Job) -> Number:
    """Bytes of the packed k-bit matrices on one GPU, without scales.

    Formula: elements / 2 for 4-bit, elements for int8; divided by the weight shards.  Source: bitsandbytes 0.50 nn/modules.py.
    Ignored: padding of odd sizes, at most one byte per matrix.
    """
    per_element = {"none": 0.0, "int8": 1.0, "nf4": 0.5, "fp4": 0.5, "gptq-int4": 0.5}[job.recipe.numerics.quantization]
    return job.counts.quantizable * per_element / job.weight_shards


def quantization_constant_bytes(job: Job) -> Number:
    """Bytes of scales that k-bit matrices carry on one GPU.

    nf4/fp4: one fp32 scale per 64 elements, 4/64 B; with double quantisation one byte per 64 and one fp32 per 64 x 256 elements.
    int8: one fp32 scale per output feature.  GPTQ: an fp16 scale and a 4-bit zero per 128 elements, an int32 group index per
    input.  Whole on every GPU: engines divide parameters, and scales are none (``Params4bit.quant_state``, ``Int8Params.SCB``,
    GPTQ's buffers), and they stay on the GPU where parameters are offloaded.  Source: bitsandbytes 0.50 nn/modules.py,
    functional.quantize_4bit and int8_vectorwise_quant; auto_gptq 0.5 nn_modules/qlinear; seen in traces of ZeRO-3 and FSDP2.
    Ignored: code books of about 1 KiB per matrix.
    """
    numerics, counts = job.recipe.numerics, job.counts
    if numerics.quantization in ("nf4", "fp4"):
        per_element = 1 / _BLOCK + 4 / (_BLOCK * _NESTED_BLOCK) if numerics.double_quant else 4 / _BLOCK
        constants: Number = counts.quantizable * per_element
    elif numerics.quantization == "int8":
        constants = counts.quantizable_rows * 4
    elif numerics.quantization == "gptq-int4":
        constants = counts.quantizable * (2 + 0.5) / _GPTQ_GROUP + counts.quantizable_inputs * 4
    else:
        constants = 0
    return constants


def unquantized_weight_bytes(job: Job) -> Number:
    """Bytes of all weights that are not quantised on one GPU: matrices of a 16/32-bit base, norms, tables, head.

    Formula: elements of each group times the bytes that the dtype regime gives it, divided by the weight shards.  Tied tables
    count once. Under ZeRO-3 and FSDP everything is divided, frozen weights included.  Small persistent parameters are in
    :func:`planner.memory.sharding.persistent_parameter_bytes`.  Source: the shapes of the model and
    :mod:`planner.anatomy.regime`; DeepSpeed 0.19 zero/partition_parameters.py partitions every parameter, trained or not.
    """
    counts, regime = job.counts, job.regime
    matrices = counts.quantizable if not regime.quantized else 0
    inside = (matrices + counts.fused_experts + counts.block_rest) * regime.base
    outside = (counts.tables + counts.head) * regime.outside + counts.norms * regime.norm_weight
    return (inside + outside) / _float_shards(job)


def _float_shards(job: Job) -> Number:
    """Shards of the unquantised tensors: these are divided even where k-bit ones cannot be."""
    sharding = job.recipe.sharding
    return sharding.shards(job.hardware) if sharding.divides_weights else 1


def adapter_bytes(job: Job) -> Number:
    """Bytes of the LoRA matrices on one GPU, in the dtype that the engine leaves them in.

    Formula: rank * (in + out) per adapted matrix.  Source: peft 0.21 tuners/lora/layer.py update_layer; fp32 by
    ``autocast_adapter_dtype`` unless an engine casts them.
    """
    return job.adapter_params * job.regime.adapter / _float_shards(job) if job.recipe.method == "lora" else 0


def saved_module_bytes(job: Job) -> Number:
    """Bytes of the trainable copies of ``modules_to_save``; the frozen originals stay and are counted with the weights.

    Source: peft 0.21 utils/other.py ModulesToSaveWrapper (``copy.deepcopy`` of the module, in its own dtype).
    """
    return job.saved_params * job.regime.outside / _float_shards(job)


def autocast_copy_bytes(job: Job) -> Number:
    """16-bit copies of fp32 trained weights of blocks that autocast caches until its region ends.

    Formula: 2 bytes per element of adapters and, with checkpointing, of fp32 trained matrices, native engine only.  Without
    checkpointing the matrices' copies are part of what each layer saves, which goes when it has run backward.  Source: torch 2.13
    aten/src/ATen/autocast_mode.cpp cached_cast (leaf tensors that require a gradient).  Norm weights and tables are not cast; the
    head's copy is made when the loss begins (:func:`planner.memory.logits.head_dequant_bytes`).
    """
    regime = job.regime
    if not regime.autocast:
        return 0
    adapters = job.adapter_params * 2 if regime.adapter == 4 else 0
    return adapters + _trained_copy_bytes(job)


def _trained_copy_bytes(job: Job) -> Number:
    """The part of the copies that belongs to a base that is trained whole in fp32: of layers that are recomputed."""
    if job.recipe.method != "full" or job.regime.base < 4 or not job.recipe.gradient_checkpointing:
        return 0
    copied = 2 * sum(group.count * linear.weight_count for group in job.model.groups for linear in _copied(job, group.block))
    return copied * job.recipe.rebuilt_share(job.model.n_layers)


def _copied(job: Job, block: BlockSpec) -> Iterator[LinearSpec]:
    """Matrices of a block that autocast makes copies of."""
    view = job.view(block)
    return (linear for linear in block.linears if is_recast(view, linear))


def outlier_weight_bytes(job: Job) -> Number:
    """16/32-bit copies of the weight columns that met outliers, which older int8 layers keep from one step to the next.

    Formula: the share of input columns with a value above the threshold of 6, times elements of int8 matrices, times the bytes of
    their input's dtype.  Source: bitsandbytes 0.41.3 autograd/_functions.py MatMul8bitLt.forward (``state.subB``), until 0.45.5.
    Ignored: the share differs from matrix to matrix and grows slowly with the tokens of a micro-batch.
    """
    if job.recipe.numerics.quantization != "int8" or not job.stack.int8_keeps_outlier_weights:
        return 0
    whole = sum(group.count * outlier_bytes_of_layer(job.view(group.block)) for group in job.model.groups)
    return job.coefficients.int8_outlier_fraction * whole


def expanded_weight_bytes(job: Job) -> int:
    """Buffer into which 4-bit weights are expanded one after the other, where the stack keeps it (``keeps_expanded_weight``).

    Formula: the largest 4-bit matrix in the compute dtype, and an fp32 scale of every 64 elements.
    Source: unsloth 2026.10.9 kernels/utils.py:634-656 and 866-880.
    """
    if not job.stack.keeps_expanded_weight or job.recipe.numerics.quantization not in ("nf4", "fp4"):
        return 0
    elements = job.counts.largest_quantizable
    return elements * job.regime.compute + elements // _BLOCK * 4


def quantized_load_extra_bytes(job: Job) -> Number:
    """Extra bytes while loading: one matrix in 16-bit on its way to k-bit, and its fp16 copy on the way to int8; or nothing.

    Source: transformers 5.23 integrations/bitsandbytes.py: each tensor is moved, quantised and freed in turn; bitsandbytes 0.50
    nn/modules.py Int8Params._quantize.
    """
    per_element = 4 if job.recipe.numerics.quantization == "int8" else 2
    return job.counts.largest_quantizable * per_element if job.regime.quantized else 0
