"""The stacks that most people train language models with: which they are, and which levers they have."""

from __future__ import annotations

from planner.domain.recipes.sharding import FSDP, Sharding
from planner.domain.scenario import Scenario
from planner.domain.stack import Stack

COMMON_STACKS = ("hf-trainer@5", "trl", "llama-factory", "axolotl", "unsloth")
"""Stacks that are tried where nobody gave one: those that most people train language models with."""
LOADS_ON_HOST = "trl@0.24"
"""One that keeps a packed base in host RAM until FSDP divides it, which newer software has whole on each GPU
first (transformers 4.57 and 5.23 modeling_utils.py).
"""
# trl 1.16.0 trainer/sft_config.py:291; axolotl utils/schemas/config.py:623; LLaMA-Factory
# hparams/model_args.py:133, use_unsloth_gc; unsloth's default; torchtune 0.6.1
# recipes/full_finetune_distributed.py:65.
_OFFLOADS_ACTIVATIONS = frozenset({"trl", "axolotl", "llama-factory", "unsloth", "torchtune"})


def stack_is_open(scenario: Scenario) -> bool:
    """Whether nobody gave the software stack, nor anything about its versions and switches."""
    stack = scenario.assumption("stack")
    given = any(
        (entry := scenario.assumption(name)) is not None and not entry.is_assumed
        for name in ("versions", "switches")
    )
    return stack is not None and stack.is_assumed and not given


def offloads_activations(stack: Stack) -> bool:
    """Whether the stack has a switch that keeps saved block inputs in host RAM."""
    return (stack.extends or stack.id) in _OFFLOADS_ACTIVATIONS


def runs_sharding(stack_id: str, sharding: Sharding) -> bool:
    """Whether a stack runs this sharding, as far as that is known to differ.

    Unsloth divides by FSDP2 only and its launch refuses DeepSpeed beside it (unsloth 2026.10.9
    fsdp2_launch.py:471-473).  torchtune has FSDP2 and no other engine (torchtune 0.6.1: no file names
    DeepSpeed).
    """
    if stack_id == "unsloth":
        return sharding == FSDP or not sharding.divides_optimizer
    return stack_id != "torchtune" or sharding.engine != "deepspeed"
