"""Matrices that Transformers or DeepSpeed divides over GPUs: what was read of what stands beside them."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.recipes.sharding import FSDP, ZERO1, ZERO2
from planner.domain.scenario import Scenario

_AUTOTP = frozenset({"llama", "mistral", "qwen3"})
"""Architectures that DeepSpeed divides as the program has it."""


def of_divided_matrices(scenario: Scenario) -> Iterator[str]:
    """What stands beside matrices that Transformers divides while it reads them.

    Source: transformers 5.23 distributed/utils.py initialize_distributed_mesh: FSDP has a mesh of its own
    where GPUs are left for it.
    """
    recipe, stack, world = scenario.recipe, scenario.stack, scenario.hardware.world_size
    if recipe.uses_deepspeed:
        yield from _of_autotp(scenario)
        return
    if world == recipe.parallel.tensor and not recipe.sharding.communicates:
        return
    if not (stack.runs_trainer and stack.fsdp2_casts == "never" and recipe.sharding is FSDP):
        yield (
            f"on stack '{stack.id}' beside other batches with sharding {recipe.sharding.name}; "
            "without --stack the answer is for one that has it"
        )
    elif world == recipe.parallel.tensor:
        yield "with sharding fsdp, for which no other GPUs are left: leave --sharding out"


def _of_autotp(scenario: Scenario) -> Iterator[str]:
    """What stands beside matrices that DeepSpeed divides.

    Source: deepspeed 0.19.8 runtime/engine.py _apply_autotp_partitioning; accelerate 1.15 accelerator.py
    _prepare_deepspeed (``autotp_size``).
    """
    recipe, stack, model = scenario.recipe, scenario.stack, scenario.model
    if stack.autotp == "unread" or not stack.runs_trainer:
        yield f"on stack '{stack.id}' beside {recipe.sharding.name}, of whose AutoTP nobody read the code"
    if recipe.sharding not in (ZERO1, ZERO2):
        yield f"with sharding {recipe.sharding.name}; zero1 and zero2 are"
    if model.architecture not in _AUTOTP:
        yield f"by DeepSpeed for architecture '{model.architecture}'; {', '.join(sorted(_AUTOTP))} are"
    if scenario.run.evaluates:
        yield "with evaluation"
