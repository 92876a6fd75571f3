"""How many passes without gradients a micro-step of training from preferences runs beside its own."""

from __future__ import annotations

from planner.domain.recipe import Recipe, Task

_PASSES: dict[Task, int] = {"dpo": 1, "kto": 3}
"""DPO asks the model as it was; KTO that and, on other completions, both models.

Source: trl 1.16.0 trainer/dpo_trainer.py, trainer/kto_trainer.py _compute_loss.
"""


def passes_aside(recipe: Recipe) -> int:
    """Forward passes without gradients of one micro-step."""
    return _PASSES.get(recipe.task, 0)
