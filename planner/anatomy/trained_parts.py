"""What is trained of a model, and which of its layers run again in backward."""

from __future__ import annotations

from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Recipe
from planner.domain.stack import Stack
from planner.domain.vision import FrozenPart
from planner.intake.train_layers import ENDS, End, TrainedParts, trained_parts


def parts_of(model: ModelSpec, recipe: Recipe) -> TrainedParts:
    """The layers and ends whose own weights are trained: all, those named, or none beside adapters."""
    if recipe.method != "full":
        return TrainedParts(frozenset(), frozenset())
    if recipe.train_layers:
        return trained_parts(recipe.train_layers, model.n_layers, tied=model.tied)
    seeing = _trained_seeing(model, recipe)
    if "language_model" in recipe.frozen:
        return TrainedParts(frozenset(), seeing)
    return TrainedParts(frozenset(range(model.n_layers)), frozenset(ENDS) | seeing)


def _trained_seeing(model: ModelSpec, recipe: Recipe) -> frozenset[End]:
    """What is trained of a tower and its projector, which get no gradients where there are no images."""
    if model.vision is None or recipe.batch.images is None:
        return frozenset()
    parts: dict[End, FrozenPart] = {"tower": "vision_tower", "projector": "projector"}
    return frozenset(end for end, name in parts.items() if name not in recipe.frozen)


def is_checkpointed(recipe: Recipe, stack: Stack, number: int, *, trained: bool) -> bool:
    """Whether layer ``number`` is checkpointed: 0, n, 2n, ..., of which some stacks spare frozen ones.

    Source: transformers 5.23 modeling_utils.py _set_gradient_checkpointing; llamafactory 0.9.5
    model/model_utils/checkpointing.py get_custom_gradient_checkpointing_func.
    """
    if not recipe.gradient_checkpointing or number % recipe.checkpoint_every:
        return False
    partly = recipe.train_layers or "language_model" in recipe.frozen
    return trained or not (partly and stack.frozen_layers == "spared")


def is_tower_checkpointed(recipe: Recipe, stack: Stack, *, trained: bool) -> bool:
    """Whether layers of a vision tower are checkpointed; ``trained``: any weight or adapter is.

    Source: as :func:`is_checkpointed`; vision layers are ``GradientCheckpointingLayer``, too.
    """
    return recipe.gradient_checkpointing and (trained or stack.frozen_layers != "spared")


def makes_patches_require_gradient(recipe: Recipe, stack: Stack) -> bool:
    """Whether what the first layer of a vision tower reads is made to require a gradient, as tokens are.

    Since Transformers 5 the hook is on the input of every model inside the model.
    Source: transformers 5.6 and 5.23 modeling_utils.py enable_input_require_grads, which in 4.57 hooks the
    token table alone; llamafactory 0.9.5 model/model_utils/checkpointing.py (of quantised models it makes the
    inputs of layers require one).
    """
    quantized_freely = stack.frozen_layers == "spared" and recipe.numerics.quantization != "none"
    hooks = makes_input_require_gradient(recipe, stack)
    return hooks and stack.model_code != "transformers-4" and not quantized_freely


def makes_input_require_gradient(recipe: Recipe, stack: Stack) -> bool:
    """Whether what the first layer reads requires a gradient although nothing below it is trained.

    Source: transformers 5.23 modeling_utils.py _activation_checkpointing_enable; peft 0.21 peft_model.py.
    """
    if stack.hooks_input and recipe.method != "full":
        return True
    return recipe.gradient_checkpointing and (
        recipe.method != "full" or stack.frozen_layers == "differentiated"
    )


def recomputed_share(model: ModelSpec, recipe: Recipe, stack: Stack) -> float:
    """Share of the layers that run forward again in backward.

    A checkpointed layer that nothing needs a gradient of keeps nothing and runs once.  Source: torch 2.13
    utils/checkpoint.py; tests/against_libraries/step_program/test_trained_layers.py.
    """
    if recipe.method != "full" or not (recipe.train_layers or "language_model" in recipe.frozen):
        return recipe.recomputed_share(model.n_layers)
    parts, recomputed = parts_of(model, recipe), 0
    reached = not {"embed", "tower", "projector"}.isdisjoint(parts.ends)
    reached = reached or makes_input_require_gradient(recipe, stack)
    for number in range(model.n_layers):
        reached = reached or number in parts.layers
        recomputed += reached and is_checkpointed(recipe, stack, number, trained=number in parts.layers)
    return recomputed / model.n_layers
