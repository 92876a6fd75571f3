"""A recipe as one flat table: the names that its parts have in records and documents, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.domain.recipes.recipe import PAIR_TASKS, Recipe
from planner.domain.recipes.sharding import sharding_named
from planner.words import words

_PARTS: Mapping[str, Mapping[str, str]] = {
    "": {
        name: name
        for name in words(
            """
            method task train_layers optimizer sharding offload gradient_checkpointing checkpoint_reentrant
            checkpoint_every checkpoint_policy attention loss optimizer_in_backward optimizer_rank
            """
        )
    },
    "numerics": {
        name: name
        for name in words("load_dtype precision quantization double_quant quant_storage fp8 qat qat_group")
    },
    "batch": {
        name: name for name in ("micro_batch", "grad_accum", "seq_len", "tokens_per_sample", "padding")
    },
    "parallel": {
        "tensor_parallel": "tensor",
        "context_parallel": "context",
        "replicas": "replicas",
        "hpz": "hpz",
    },
    "adapter": {
        "lora_rank": "rank",
        "lora_dropout": "dropout",
        "adapter_dtype": "dtype",
        "lora_targets": "targets",
        "modules_to_save": "modules_to_save",
        "dora": "dora",
        "oft_block_size": "oft_block_size",
        "vera": "vera",
    },
}
"""Part of a recipe -> flat name -> attribute of the part."""
_PIPELINE = {
    "pipeline_parallel": "pipeline",
    "pipeline_schedule": "schedule",
    "pipeline_microbatches": "microbatches",
}
"""Of a recipe with a pipeline."""
_EXPERTS = {"expert_parallel": "experts"}
"""Of a recipe whose experts are divided over GPUs."""


def flat_recipe(recipe: Recipe) -> dict[str, Any]:
    """Every choice of the recipe by its flat name, a sharding by its own;
    those of an adapter only where there is one.
    """
    flat: dict[str, Any] = {}
    for part, names in _PARTS.items():
        holder = getattr(recipe, part) if part else recipe
        if holder is not None:
            flat |= {name: getattr(holder, attribute) for name, attribute in names.items()}
    if recipe.parallel.in_turn:
        flat |= {"device_map": "auto"}
    elif recipe.parallel.pipeline > 1:
        flat |= {name: getattr(recipe.parallel, attribute) for name, attribute in _PIPELINE.items()}
    if recipe.parallel.experts > 1:
        flat |= {name: getattr(recipe.parallel, attribute) for name, attribute in _EXPERTS.items()}
    if recipe.sharding.engine == "megatron-core" and recipe.parallel.tensor > 1:
        flat |= {"expert_tensor_parallel": recipe.parallel.expert_tensor}
    return flat | {"sharding": recipe.sharding.name}


def values_without_column(recipe: Recipe) -> dict[str, Any]:
    """What the recipe says that no record has a column for, by the names of flags."""
    return _seeing_values(recipe) | _generated_values(recipe) | _pipeline_values(recipe)


def _pipeline_values(recipe: Recipe) -> dict[str, Any]:
    """What a pipeline of Megatron was told: more than two runs of layers, and how many layers the first and
    the last group have where they do not divide evenly.
    """
    parallel = recipe.parallel
    groups = [sum(parallel.layers[rank :: parallel.pipeline]) for rank in range(parallel.pipeline)]
    values: dict[str, Any] = {"pipeline_runs": parallel.runs} if parallel.chunks > 2 else {}
    if len(set(groups)) > 1:
        values |= {"pipeline_first_layers": groups[0], "pipeline_last_layers": groups[-1]}
    return values


def _seeing_values(recipe: Recipe) -> dict[str, Any]:
    """What the recipe says about images and frozen parts, by the names of flags;
    nothing where it says nothing.
    """
    images = recipe.batch.images
    size = (
        {"images_per_sample": images.per_sample, "image_size": f"{images.width}x{images.height}"}
        if images
        else {}
    )
    return {**size, "freeze": recipe.frozen}


def _generated_values(recipe: Recipe) -> dict[str, Any]:
    """What the recipe says about completions that are generated, by the names of flags; nothing where none
    are.  PPO takes no more than their length and how often they are trained on.
    """
    rollout = recipe.rollout
    if rollout is None:
        return {}
    found: dict[str, Any] = {"completion_length": rollout.completion_tokens, "iterations": rollout.iterations}
    if recipe.task == "ppo":
        return found
    found |= {"generations": rollout.generations, "generation_steps": rollout.micro_steps}
    found |= {"generator": rollout.generator, "compare_reference": rollout.has_reference}
    if rollout.generator == "vllm":
        found |= {"vllm_memory": rollout.vllm_share, "vllm_sleep": rollout.vllm_sleeps}
        found["vllm_tensor_parallel"] = rollout.vllm_gpus
    if rollout.reward is not None:
        found["reward_dtype"] = rollout.reward.load_dtype
    return found


def with_flat(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """The recipe with other values, by flat names.

    Raises:
        KeyError: no such name, or one of an adapter where there is none.
    """
    left = dict(changes)
    if "sharding" in left:
        left["sharding"] = sharding_named(left["sharding"])
    for part, names in (*_PARTS.items(), ("parallel", _PIPELINE), ("parallel", _EXPERTS)):
        new = {attribute: left.pop(name) for name, attribute in names.items() if name in left}
        if new and not part:
            recipe = replace(recipe, **new)
        elif new:
            held = getattr(recipe, part)
            if held is None:
                raise KeyError(f"the recipe has no {part}")
            recipe = replace(recipe, **{part: replace(held, **new)})
    if left:
        raise KeyError(next(iter(left)))
    return replace(recipe, batch=replace(recipe.batch, is_paired=recipe.task in PAIR_TASKS))
