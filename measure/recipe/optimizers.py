"""The optimizer of a recipe as the Trainer makes it, from the libraries' own classes.

Source: transformers 5.23 trainer.py ``create_optimizer``, trainer_optimizer.py.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from planner.domain.recipes.optimizers import OPTIMIZER_FACTS, Optimizer
from planner.domain.recipes.recipe import Recipe
from planner.errors import NotModelledError, UsageError, how_to_install

# The Trainer's patterns for parameters without weight decay (transformers 5.23 trainer.py
# get_decay_parameter_names).
_NO_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
_LEARNING_RATE = 1e-4
# Where a choice is left to torch, CUDA takes the foreach form and a CPU does not.
_TORCH: dict[Optimizer, tuple[str, dict[str, Any]]] = {
    "adamw_torch": ("AdamW", {"foreach": True}),
    "adamw_torch_fused": ("AdamW", {"fused": True}),
    "sgd": ("SGD", {"foreach": True}),
    "rmsprop": ("RMSprop", {"foreach": True}),
}
# Families and their classes; in how many bits and whether paged, the facts say.
_BITSANDBYTES = {"adamw": "AdamW", "lion": "Lion", "ademamix": "AdEMAMix"}
MIN_PAGED_ELEMENTS = 100_000
"""Smaller states of a paged optimizer are ordinary tensors.  Source:
bitsandbytes 0.50 optim/optimizer.py get_state_buffer.
"""


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimizer with the Trainer's two groups and its default weight decay, 0.

    Raises:
        UsageError: an optimizer whose library is not installed.
    """
    groups = [{"params": tensors, "weight_decay": 0.0} for tensors in parameter_groups(model) if tensors]
    return optimizer_over(model, groups, recipe)


def optimizer_over(model: nn.Module, groups: list[dict[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimizer over groups of tensors, which need not be the parameters of ``model``.

    Raises:
        UsageError: an optimizer whose library is not installed.
        NotModelledError: an optimizer that nothing here makes, or one that steps in the backward pass.
    """
    name = recipe.optimizer
    if recipe.optimizer_in_backward:
        raise NotModelledError(
            "--optimizer-in-backward cannot be run or traced here; take the dry run of its program (measure "
            "trace --gpu CARD -- PROGRAM)"
        )
    if name in _TORCH:
        class_name, options = _TORCH[name]
        return _made(getattr(torch.optim, class_name), groups, options)
    facts = OPTIMIZER_FACTS.get(name)
    if facts is not None and facts.library == "bitsandbytes":
        options = {"optim_bits": facts.bits, "is_paged": facts.paged}
        family = name.removeprefix("paged_").partition("_")[0]
        return _bitsandbytes(model, _BITSANDBYTES[family], groups, options)
    if name != "adafactor":
        known = ", ".join((*_TORCH, "adafactor", "those of bitsandbytes"))
        raise NotModelledError(f"optimizer '{name}' is not among those that are made here: {known}")
    from transformers import Adafactor

    return _made(Adafactor, groups, {"scale_parameter": False, "relative_step": False})


def parameter_groups(model: nn.Module, *, one: bool = False) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trained parameters with weight decay, and those without; either can be empty.  ``one``: all are the
    first.
    """
    if one:
        return [tensor for tensor in model.parameters() if tensor.requires_grad], []
    from transformers.trainer_pt_utils import get_parameter_names

    names: Any = get_parameter_names
    decayed = set(names(model, [nn.LayerNorm], _NO_DECAY))
    trained = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
    return (
        [tensor for name, tensor in trained if name in decayed],
        [tensor for name, tensor in trained if name not in decayed],
    )


def _made(make: Any, groups: list[dict[str, Any]], options: dict[str, Any]) -> torch.optim.Optimizer:
    optimizer: torch.optim.Optimizer = make(groups, lr=_LEARNING_RATE, **options)
    return optimizer


def _bitsandbytes(
    model: nn.Module, name: str, groups: list[dict[str, Any]], options: dict[str, Any]
) -> torch.optim.Optimizer:
    """An optimizer of bitsandbytes; the Trainer keeps the states of tables in 32 bits under an 8-bit one."""
    if find_spec("bitsandbytes") is None:
        raise UsageError(f"bitsandbytes is not installed; {how_to_install('measure')}")
    library: Any = import_module("bitsandbytes.optim")
    manager = library.GlobalOptimManager.get_instance()
    # One registry serves the whole process: settings of an earlier trace must not stay.
    manager.initialize()
    optimizer = _made(getattr(library, name), groups, options)
    if options["optim_bits"] == 8:
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                manager.register_module_override(module, "weight", {"optim_bits": 32})
    return optimizer
