"""How many passes without gradients a micro-step of training from preferences runs beside its own.

DPO asks the model as it was; KTO that, and on other completions both models.  What is generated may be asked
about by both, once before it is trained on.
Source: trl 1.16.0 trainer/dpo_trainer.py, trainer/kto_trainer.py _compute_loss.
"""

from __future__ import annotations

from planner.domain.recipes.recipe import Recipe, Task

_OF_POLICY: dict[Task, int] = {"kto": 1}
_OF_REFERENCE: dict[Task, int] = {"dpo": 1, "kto": 2}


def policy_passes(recipe: Recipe) -> float:
    """Forward passes without gradients of the model that is trained, in one micro-step.

    Source: trl 1.16.0 trainer/kto_trainer.py _compute_kl_logps, trainer/grpo_trainer.py
    _generate_and_score_completions.
    """
    if recipe.rollout is not None:
        return int(recipe.asks_old) / recipe.rollout.iterations
    return _OF_POLICY.get(recipe.task, 0)


def reference_passes(recipe: Recipe) -> float:
    """Forward passes of the model as it was before, in one micro-step;
    none where it was asked before training.  A loss of tokens that compares logits asks once.

    Source: trl 1.16.0 trainer/dpo_trainer.py, trainer/kto_trainer.py _compute_loss, trainer/grpo_trainer.py;
    llamafactory 0.9.5 train/sft/trainer.py compute_loss.
    """
    if recipe.rollout is not None:
        return int(recipe.rollout.has_reference) / recipe.rollout.iterations
    return _OF_REFERENCE.get(recipe.task, 1) if recipe.has_reference else 0


def passes_aside(recipe: Recipe) -> float:
    """Both together.  Source: :func:`policy_passes`, :func:`reference_passes`."""
    return policy_passes(recipe) + reference_passes(recipe)
