"""Whether gradients reach a vision tower."""

from __future__ import annotations

from planner.anatomy.adapters import is_adapted
from planner.anatomy.trained import makes_patches_require_gradient, parts_of
from planner.throughput.job import TimedJob


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
