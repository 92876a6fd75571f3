"""Bytes of weights on one GPU, as a checkpoint copies them: quantised matrices,
what stays unquantised, adapters.
"""

from __future__ import annotations

from planner.anatomy.packing import constants_bytes, packed_bytes
from planner.domain.recipes.recipe import Number
from planner.program.job import Job


def quantized_weight_bytes(job: Job) -> Number:
    """Bytes of the packed matrices on one GPU, without what unpacking reads.

    Formula: :func:`planner.anatomy.packing.packed_bytes`, divided by the weight shards.  Source: there.
    """
    return packed_bytes(job.recipe.numerics, job.counts.quantizable) / job.weight_shards


def quantization_constant_bytes(job: Job) -> Number:
    """Bytes of scales, zeros, indices and code books that packed matrices carry on one GPU.

    Whole on every GPU: engines divide parameters, and these are none (``Params4bit.quant_state``,
    ``Int8Params.SCB``, buffers of GPTQ and AWQ).  They stay on the GPU where parameters are offloaded.
    Formula: :func:`planner.anatomy.packing.constants_bytes`.  Source: there;
    seen in traces of ZeRO-3 and FSDP2.
    """
    return sum(constants_bytes(job.recipe.numerics, job.counts.packed))


def unquantized_weight_bytes(job: Job) -> Number:
    """Bytes of all weights that are not quantised on one GPU: matrices of a 16/32-bit base, norms,
    tables, head.

    Formula: elements of each group times the bytes that the dtype regime gives it, divided by the weight
    shards.  Tied tables count once. Under ZeRO-3 and FSDP everything is divided, frozen weights
    included.  Source: the shapes of the model and :mod:`planner.anatomy.regime`; DeepSpeed 0.19
    zero/partition_parameters.py partitions every parameter, trained or not.
    """
    counts, regime = job.counts, job.regime
    matrices = counts.quantizable if not regime.quantized else 0
    inside = (matrices + counts.fused_experts + counts.block_rest) * regime.base
    outside = (counts.tables + counts.head) * regime.outside + counts.norms * regime.norm_weight
    return (inside + outside) / _float_shards(job)


def _float_shards(job: Job) -> Number:
    """Shards of the unquantised tensors: these are divided even where k-bit ones cannot be."""
    sharding = job.recipe.sharding
    return job.recipe.shards(job.hardware) if sharding.divides_weights else 1


def adapter_bytes(job: Job) -> Number:
    """Bytes of the LoRA matrices on one GPU, in the dtype that the engine leaves them in.

    Formula: rank * (in + out) per adapted matrix.  Source: peft 0.21 tuners/lora/layer.py update_layer; fp32
    by ``autocast_adapter_dtype`` unless an engine casts them.
    """
    return job.adapter_params * job.regime.adapter / _float_shards(job) if job.recipe.method == "lora" else 0


def saved_module_bytes(job: Job) -> Number:
    """Bytes of the trainable copies of ``modules_to_save``;
    the frozen originals stay and are counted with the weights.

    Source: peft 0.21 utils/other.py ModulesToSaveWrapper (``copy.deepcopy`` of the module, in its own dtype).
    """
    return job.saved_params * job.regime.outside / _float_shards(job)
