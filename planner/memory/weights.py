"""Bytes of weights on one GPU, as a checkpoint copies them: quantised matrices, what stays unquantised, adapters."""

from __future__ import annotations

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
    count once. Under ZeRO-3 and FSDP everything is divided, frozen weights included.  Source: the shapes of the model and
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
