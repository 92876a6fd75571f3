"""How the decoder layers of a model repeat, and its configuration with fewer of them."""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from measure.recipe.modules import find_layer_list
from measure.trace.build import base_model
from measure.trace.period import TRACED_PERIODS, Pattern, find_pattern
from planner.domain.scenario import Scenario
from planner.errors import NotModelledError

# Names under which layers keep their own number, which is no difference between them.
_LAYER_NUMBERS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "idx"})


def layer_pattern(scenario: Scenario, config: Any) -> Pattern:
    """How the decoder layers repeat: by their modules, the shapes of their parameters and their settings."""
    with torch.device("meta"):
        model = base_model(scenario, config)
        layer_list = find_layer_list(model, config)
    # PEFT wraps the model, which adds to the names.
    full_name = f"base_model.model.{layer_list}" if scenario.recipe.adapter is not None else layer_list
    every = scenario.recipe.checkpoint_every if scenario.recipe.rebuilds_some else 1
    kinds = [_fingerprint(layer) for layer in model.get_submodule(layer_list)]
    pattern = find_pattern([(kind, index % every == 0) for index, kind in enumerate(kinds)], full_name)
    if pattern.periods > TRACED_PERIODS and not _is_prefix(
        scenario, shortened(config, pattern.traced_layers), kinds
    ):
        return Pattern(len(kinds), 1, 0, full_name)
    return pattern


def _is_prefix(scenario: Scenario, short: Any, kinds: list[Hashable]) -> bool:
    """Whether a configuration with fewer layers makes the first layers of the whole model,
    and not some in another order.
    """
    try:
        with torch.device("meta"):
            model = base_model(scenario, short)
            layers = model.get_submodule(find_layer_list(model, short))
    except (NotModelledError, ValueError, TypeError, IndexError):
        return False  # settings of each layer that cannot be cut: every layer is traced
    return [_fingerprint(layer) for layer in layers] == kinds[: len(layers)]


def _fingerprint(layer: nn.Module) -> Hashable:
    parts: list[Hashable] = []
    for name, module in layer.named_modules():
        settings = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, str | int | float | bool | None)
        }
        tensors = (*module._parameters.items(), *module._buffers.items())
        shapes = [(key, tuple(value.shape), str(value.dtype)) for key, value in tensors if value is not None]
        kept = sorted((key, str(value)) for key, value in settings.items() if key not in _LAYER_NUMBERS)
        parts.append((name, type(module).__qualname__, tuple(kept), tuple(shapes)))
    return tuple(parts)


def shortened(config: Any, n_layers: int) -> Any:
    """``config`` with its first ``n_layers`` layers only."""
    short = copy.deepcopy(config)
    text = short.get_text_config()
    depth = text.num_hidden_layers
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == depth:
            setattr(text, name, value[:n_layers])
    text.num_hidden_layers = n_layers
    return short
