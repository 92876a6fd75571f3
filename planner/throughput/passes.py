"""How many passes without gradients a micro-step of training from preferences runs beside its own.

DPO asks the model as it was; KTO that, and on other completions both models.
Source: trl 1.16.0 trainer/dpo_trainer.py, trainer/kto_trainer.py _compute_loss.
"""

from __future__ import annotations

from planner.domain.recipe import Recipe, Task

_OF_POLICY: dict[Task, int] = {"kto": 1}
_OF_REFERENCE: dict[Task, int] = {"dpo": 1, "kto": 2}


def policy_passes(recipe: Recipe) -> int:
    """Forward passes without gradients of the model that is trained, in one micro-step.

    Source: trl 1.16.0 trainer/kto_trainer.py _compute_kl_logps.
    """
    return _OF_POLICY.get(recipe.task, 0)


def reference_passes(recipe: Recipe) -> int:
    """Forward passes of the model as it was before, in one micro-step;
    none where it was asked before training.

    Source: trl 1.16.0 trainer/dpo_trainer.py, trainer/kto_trainer.py _compute_loss.
    """
    return _OF_REFERENCE.get(recipe.task, 0) if recipe.has_reference else 0


def passes_aside(recipe: Recipe) -> int:
    """Both together.  Source: :func:`policy_passes`, :func:`reference_passes`."""
    return policy_passes(recipe) + reference_passes(recipe)
