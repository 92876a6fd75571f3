"""What was said about generation, filled up with the defaults of TRL's trainer -> Rollout."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import GENERATING_TASKS, Dtype, Recipe, Task
from planner.domain.recipes.rollout import Generator, RewardModel, Rollout
from planner.domain.stack import Stack
from planner.errors import NotModelledError, UsageError
from planner.intake.given.fields import CHECKPOINT_DTYPE
from planner.intake.given.ledger import Ledger
from planner.intake.linears import with_separate_experts
from planner.intake.tasks import with_score

ROLLOUT_FIELDS = (
    *("generations", "completion_length", "generation_steps", "iterations"),
    *("compare_reference", "generator", "vllm_memory", "reward_model", "reward_dtype"),
)
"""Flags of tasks that generate, which no other task takes."""
_CONFIG = "trl 1.16.0 trainer/grpo_config.py"
_COMPLETION_TOKENS = 512
_FULL = "every completion is taken to reach it"


def resolve_rollout(ledger: Ledger, task: Task) -> Rollout | None:
    """What is generated; ``None`` for a task that does not.

    Raises:
        UsageError: a flag of generation with another task, or no room for a prompt.
    """
    if task not in GENERATING_TASKS:
        said = next((name for name in ROLLOUT_FIELDS if ledger.said(name)), None)
        if said is not None:
            raise UsageError(
                f"{said} is of tasks that generate ({', '.join(sorted(GENERATING_TASKS))}), and the "
                f"task is {task}"
            )
        return None
    generator: Generator = ledger.choose(
        "generator", "transformers", "assumed", f"{_CONFIG}: use_vllm is off"
    )
    beside = generator == "vllm"
    iterations: int = ledger.choose("iterations", 1, "assumed", f"{_CONFIG}: num_iterations")
    return Rollout(
        completion_tokens=_completion(ledger),
        generations=ledger.choose("generations", 8, "assumed", f"{_CONFIG}: num_generations"),
        micro_steps=ledger.choose("generation_steps", None, "assumed")
        if ledger.said("generation_steps")
        else None,
        iterations=iterations,
        has_reference=ledger.choose("compare_reference", False, "assumed", f"{_CONFIG}: beta is 0"),
        generator=generator,
        vllm_share=ledger.choose("vllm_memory", 0.3, "assumed", f"{_CONFIG}: vllm_gpu_memory_utilization")
        if beside
        else 0.0,
    )


def _completion(ledger: Ledger) -> int:
    seq: int = ledger.request.get("seq")
    default = min(_COMPLETION_TOKENS, max(seq // 2, 1))
    note = f"{_CONFIG}: max_completion_length, at most half of seq; {_FULL}"
    tokens: int = ledger.choose("completion_length", default, "assumed", note)
    if ledger.said("completion_length"):
        ledger.remark("completion_length", _FULL)
    if tokens >= seq:
        raise UsageError(
            f"completion_length of {tokens} leaves no room for a prompt in seq of {seq}: raise seq, "
            "which holds both"
        )
    return tokens


def with_reward(ledger: Ledger, recipe: Recipe, model: ModelSpec | None, stack: Stack) -> Recipe:
    """``recipe``, whose completions ``model`` scores where one is given.

    Raises:
        UsageError: a dtype of no reward model.
        NotModelledError: a reward model whose pass was not read.
    """
    if model is None or recipe.rollout is None:
        if ledger.said("reward_dtype"):
            raise UsageError("reward_dtype is of --reward-model, which is not given")
        return recipe
    _check_reward(model)
    scored = with_score(model if stack.fused_experts else with_separate_experts(model))
    reward = RewardModel(scored, _reward_dtype(ledger, recipe, model, stack))
    return replace(recipe, rollout=replace(recipe.rollout, reward=reward))


def _check_reward(model: ModelSpec) -> None:
    kinds = {
        "images": model.vision is not None,
        "layers that keep a state instead of keys": any(
            each.block.mixer is not None for each in model.groups
        ),
        "packed weights": model.stored is not None,
    }
    for what, has in kinds.items():
        if has:
            raise NotModelledError(
                f"reward_model {model.id}: a reward model with {what} is not modelled; name a text model "
                "of plain weights, or leave the flag out where a function scores"
            )


def _reward_dtype(ledger: Ledger, recipe: Recipe, model: ModelSpec, stack: Stack) -> Dtype:
    """As the policy, from the same arguments; scripts of TRL before 0.29 gave none to Transformers 4.

    Source: trl 1.16.0 trainer/grpo_trainer.py (``model_init_kwargs``) and scripts/grpo.py;
    0.16.1 to 0.21.0 scripts/grpo.py.
    """
    shared = stack.completion_logps in ("in_place", "tiles")
    said = ledger.request.get("load_dtype")
    default: str = recipe.numerics.load_dtype if shared else "fp32"
    note = "trl 1.16.0 scripts/grpo.py: as the policy" if shared else "trl 0.21.0 scripts/grpo.py"
    chosen: str = ledger.choose(
        "reward_dtype", CHECKPOINT_DTYPE if shared and said == CHECKPOINT_DTYPE else default, "assumed", note
    )
    return model.checkpoint_dtype if chosen == CHECKPOINT_DTYPE else cast("Dtype", chosen)
