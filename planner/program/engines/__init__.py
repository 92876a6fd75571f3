"""Engines that divide a job over several GPUs:
what each of them allocates beside the model's own requests.

Each is imported when a job runs on it: most run on none.
"""

from __future__ import annotations

from planner.program.job import Job
from planner.program.runtime import Runtime


def runtime_of(job: Job) -> type[Runtime]:
    """The runtime of a job's sharding."""
    sharding = job.recipe.sharding
    if job.recipe.optimizer_in_backward:
        from planner.program.engines.layerwise import Layerwise

        return Layerwise
    if job.recipe.optimizer == "badam":
        from planner.program.engines.blockwise import Blockwise

        return Blockwise
    if sharding.engine == "deepspeed":
        return _zero_of(job)
    if sharding.engine == "fsdp":
        return _fsdp_of(job)
    if sharding.engine == "megatron-core":
        from planner.program.engines.megatron import Megatron

        return Megatron
    if sharding.communicates:
        from planner.program.engines.ddp import Ddp

        return Ddp
    return Runtime


def _zero_of(job: Job) -> type[Runtime]:
    if job.recipe.sharding.is_zero3:
        from planner.program.engines.zero.zero3 import Zero3

        return Zero3
    if not job.recipe.sharding.is_zero12:
        from planner.program.engines.zero.zero0 import Zero0

        return Zero0
    if job.stack.zero12_engine == "low_level":
        from planner.program.engines.zero.low_level_zero import LowLevelZero

        return LowLevelZero
    from planner.program.engines.zero.zero12 import Zero12

    return Zero12


def _fsdp_of(job: Job) -> type[Runtime]:
    if job.model.stage is not None:
        from planner.program.engines.fsdp.pipelined import PipelinedFsdp2

        return PipelinedFsdp2
    if job.model.expert_parts > 1:
        from planner.program.engines.fsdp.expert_fsdp2 import ExpertFsdp2, SendingExpertFsdp2

        return SendingExpertFsdp2 if job.stack.model_code == "own" else ExpertFsdp2
    if job.recipe.sharding.dtensors:
        from planner.program.engines.fsdp.fsdp2 import Fsdp2

        return Fsdp2
    from planner.program.engines.fsdp.fsdp1 import Fsdp1

    return Fsdp1
