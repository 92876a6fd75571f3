"""What a vision tower's method needs, and whether gradients reach it."""

from __future__ import annotations

from planner.anatomy.adapters import is_adapted
from planner.anatomy.trained import makes_patches_require_gradient, parts_of
from planner.anatomy.work import FLOP_PER_MAC
from planner.arrays import minimum
from planner.domain.recipes.recipe import Number
from planner.program.ops.tensors import Unit
from planner.program.ops.work import FusedAttention, Product
from planner.throughput.counted import Counted, by_structure
from planner.throughput.job import TimedJob


def tower_flop(job: TimedJob) -> Number:
    """FLOP that the method needs in a tower for one micro-step, without recomputation;
    attention's backward is twice its forward.

    Source: the operators of :mod:`planner.program.vision`; as :func:`planner.anatomy.work.model_flop`.
    """
    images = job.recipe.batch.images
    if job.scenario.model.vision is None or images is None:
        return 0
    values, times = job.values, 3 if runs_backward(job) else 1

    def read(counted: Counted) -> dict[str, Number]:
        found: Number = 0.0
        for each in counted.costs:
            if each.place != "tower" or each.direction == "again":
                continue
            if isinstance(each.kind, Product):
                found = found + each.amount * values[each.unit]
            elif isinstance(each.kind, FusedAttention) and each.direction == "forward":
                keys = minimum(each.kind.window or images.patches, images.patches)
                found = found + times * each.amount * values[Unit.PATCHES] * keys
        return {"macs": found}

    return FLOP_PER_MAC * by_structure(job.scenario, job.micro, "training", read)["macs"]


def runs_backward(job: TimedJob) -> bool:
    """Whether gradients reach the tower: something of it is trained, or its input requires one.

    Source: :func:`planner.anatomy.trained.makes_patches_require_gradient`.
    """
    return _is_trained(job) or makes_patches_require_gradient(job.recipe, job.scenario.stack)


def _is_trained(job: TimedJob) -> bool:
    """Whether weights or adapters of the tower's layers are trained."""
    vision, adapter = job.scenario.model.vision, job.recipe.adapter
    if vision is None:
        return False
    linears = (linear for group in vision.groups for linear in group.block.linears)
    adapted = adapter is not None and any(is_adapted(linear, adapter.targets) for linear in linears)
    return adapted or "tower" in parts_of(job.scenario.model, job.recipe).ends
