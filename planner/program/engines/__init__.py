"""Engines that divide a job over several GPUs:
what each of them allocates beside the model's own requests.
"""

from __future__ import annotations

from planner.program.engines.blockwise import Blockwise
from planner.program.engines.ddp import Ddp
from planner.program.engines.fsdp.expert_fsdp2 import ExpertFsdp2
from planner.program.engines.fsdp.fsdp1 import Fsdp1
from planner.program.engines.fsdp.fsdp2 import Fsdp2
from planner.program.engines.fsdp.pipelined import PipelinedFsdp2
from planner.program.engines.layerwise import Layerwise
from planner.program.engines.megatron import Megatron
from planner.program.engines.zero.low_level_zero import LowLevelZero
from planner.program.engines.zero.zero0 import Zero0
from planner.program.engines.zero.zero3 import Zero3
from planner.program.engines.zero.zero12 import Zero12
from planner.program.engines.zero.zero12_apart import Zero12Apart
from planner.program.job import Job
from planner.program.runtime import Runtime


def runtime_of(job: Job) -> type[Runtime]:
    """The runtime of a job's sharding."""
    if job.recipe.optimizer_in_backward:
        return Layerwise
    if job.recipe.optimizer == "badam":
        return Blockwise
    sharding = job.recipe.sharding
    if sharding.engine == "deepspeed":
        if sharding.is_zero3:
            return Zero3
        if not sharding.is_zero12:
            return Zero0
        return _stage_12_of(job)
    if sharding.engine == "fsdp":
        return _fsdp_of(job)
    if sharding.engine == "megatron-core":
        return Megatron
    return Ddp if sharding.communicates else Runtime


def _stage_12_of(job: Job) -> type[Runtime]:
    if job.stack.zero12_engine == "low_level":
        return LowLevelZero
    # An offloaded optimizer has buckets in any case (DeepSpeed 0.19.8 stage_1_and_2.py:300).
    return Zero12 if job.stack.zero12_contiguous or job.recipe.offloads_optimizer else Zero12Apart


def _fsdp_of(job: Job) -> type[Runtime]:
    if job.model.stage is not None:
        return PipelinedFsdp2
    if job.model.expert_parts > 1:
        return ExpertFsdp2
    return Fsdp2 if job.recipe.sharding.dtensors else Fsdp1
