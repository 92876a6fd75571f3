"""What a recipe trains of a model where that is not everything, and which layers it computes again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from measure.recipe.checkpointing import checkpoint_kwargs
from measure.recipe.modules import find_layer_list, part_of
from planner.domain.scenario import Scenario
from planner.domain.stack_values import ENTERS, FrozenLayers
from planner.errors import NotModelledError
from planner.intake.train_layers import End, TrainedParts, drawn, trained_parts


def freeze(model: Any, scenario: Scenario) -> Any:
    """``model``, in which only what the recipe trains requires gradients,
    in fp32 where the stack widens it.

    Raises:
        NotModelledError: layers that are drawn anew, whose states grow with the steps.
    """
    recipe, widens = scenario.recipe, scenario.stack.trainable_fp32
    if recipe.method != "full":
        return model
    if scenario.stack.widens_ends and recipe.sharding.engine == "native":
        _widen_ends(model)
    if recipe.frozen:
        for name, tensor in model.named_parameters():
            tensor.requires_grad_(part_of(name) not in recipe.frozen)
    if not recipe.train_layers:
        return _widened(model) if widens else model
    if drawn(recipe.train_layers) is not None:
        raise NotModelledError("layers that are drawn anew cannot be run or traced yet; use plan --model ...")
    spec, layer_list = scenario.model, find_layer_list(model, model.config)
    parts, ends = trained_parts(recipe.train_layers, spec.n_layers, tied=spec.tied), _ends(model)
    for name, tensor in model.named_parameters():
        number = (
            name.removeprefix(f"{layer_list}.").partition(".")[0] if name.startswith(f"{layer_list}.") else ""
        )
        tensor.requires_grad_(
            _in_layer(parts, int(number), name) if number else ends.get(id(tensor), "norm") in parts.ends
        )
        if widens and tensor.requires_grad:
            tensor.data = tensor.data.to(torch.float32)
    return model


def _widened(model: Any) -> Any:
    """``model`` with its trained parameters in fp32."""
    for tensor in model.parameters():
        if tensor.requires_grad:
            tensor.data = tensor.data.to(torch.float32)
    return model


def _widen_ends(model: nn.Module) -> None:
    """Turn norms, tables and head to fp32.  Source: axolotl 0.19.0 loaders/model.py
    _convert_embedding_modules_dtype.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for name, module in model.named_modules():
        if (
            module is head
            or isinstance(module, nn.Embedding | nn.LayerNorm)
            or "norm" in name.rpartition(".")[2]
        ):
            module.to(torch.float32)


def _in_layer(parts: TrainedParts, number: int, name: str) -> bool:
    """Whether a parameter of a layer is trained; modules of feed-forward parts are called so,
    or ``block_sparse_moe``.
    """
    is_half = ".mlp." in name or ".block_sparse_moe." in name or ".feed_forward." in name
    return number in parts.layers and (number not in parts.mlp_only or is_half)


def _ends(model: nn.Module) -> dict[int, End]:
    """Tables and head by the ``id`` of their parameters; a tied one is a table."""
    found: dict[int, End] = {}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    found.update({id(tensor): "head" for tensor in (head.parameters() if head is not None else ())})
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    found.update({id(tensor): "embed" for table in tables for tensor in table.parameters()})
    return found


def checkpoint_activations(model: Any, scenario: Scenario) -> None:
    """As the Trainer does: the setting, and inputs that require a gradient where no embedding is trained."""
    recipe = scenario.recipe
    if not recipe.gradient_checkpointing:
        return
    # Only said where it is asked for: older versions of Transformers do not know it.
    every = {"every_n_layers": recipe.checkpoint_every} if recipe.rebuilds_some else {}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpoint_kwargs(recipe), **every)
    if recipe.method == "lora":
        model.enable_input_require_grads()
    elif recipe.train_layers:
        differentiate(model, find_layer_list(model, model.config), scenario.stack.frozen_layers)


def differentiate(model: Any, layer_list: str, frozen: FrozenLayers) -> None:
    """Let those inputs of checkpointed layers require gradients that do so in the stack.

    Source: llamafactory 0.9.5 model/model_utils/checkpointing.py get_custom_gradient_checkpointing_func.
    """
    if frozen == "differentiated":
        model.enable_input_require_grads()
        return
    model.disable_input_require_grads()
    if frozen not in ENTERS:
        return
    for layer in model.get_submodule(layer_list):
        trained = any(tensor.requires_grad for tensor in layer.parameters())
        if trained:
            own = layer._gradient_checkpointing_func  # noqa: SLF001
            layer._gradient_checkpointing_func = partial(_entered, own)  # noqa: SLF001
        elif frozen == "spared":
            layer.gradient_checkpointing = False


def _entered(again: Callable[..., Any], function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Checkpoint ``function`` with a first tensor that requires a gradient."""
    first = next(each for each in arguments if torch.is_tensor(each) and torch.is_floating_point(each))
    first.requires_grad_(True)
    return again(function, *arguments, **named)
