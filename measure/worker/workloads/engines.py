"""Which engine runs a recipe."""

from __future__ import annotations

from typing import Any

from measure.worker.workloads.engine import Engine, PlainEngine
from measure.worker.workloads.task import Task


def open_engine(model: Any, task: Task) -> Engine:
    """The engine of the recipe.

    Raises:
        EngineMismatchError: another engine than the one asked for would run.
    """
    recipe = task.scenario.recipe
    if not recipe.sharding.communicates:
        return PlainEngine(model, task)
    from measure.worker.workloads.sharded import DdpEngine, DeepspeedEngine, FsdpEngine

    if recipe.uses_deepspeed:
        return DeepspeedEngine(model, task)
    return FsdpEngine(model, task) if recipe.uses_fsdp else DdpEngine(model, task)
