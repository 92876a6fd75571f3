"""Gradient of a trained head."""

from __future__ import annotations

from planner.program.job import Job


def head_gradient_bytes(job: Job) -> int:
    """Gradient of a trained head; 0 when it is frozen, or normalised and counted elsewhere.

    Formula: vocabulary * hidden in the gradient's dtype.  Source: torch 2.13 derivatives.yaml, ``linear``.
    """
    model, adapter = job.model, job.recipe.adapter
    if model.normhead:
        return 0
    if job.recipe.method == "full":
        return model.head.weight_count * job.regime.gradient
    saved = adapter is not None and any(name.rpartition(".")[2] == model.head.name for name in adapter.modules_to_save)
    return model.head.weight_count * job.regime.outside if saved else 0
