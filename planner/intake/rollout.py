"""What was said about generation, filled up with the defaults of TRL's trainer -> Rollout."""

from __future__ import annotations

from planner.domain.recipes.recipe import GENERATING_TASKS, Task
from planner.domain.recipes.rollout import Generator, Rollout
from planner.errors import UsageError
from planner.intake.given.ledger import Ledger

ROLLOUT_FIELDS = (
    *("generations", "completion_length", "generation_steps", "iterations"),
    *("compare_reference", "generator", "vllm_memory"),
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
