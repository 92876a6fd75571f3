"""Adapters of PEFT on a model, where the recipe puts them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from measure.recipe.modules import part_of
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import TARGET_PARAMETER, Adapter, Recipe
from planner.intake.linears import GROUP_TARGETS

SCORE = "score"
"""The head of a reward model, by its name in Transformers, which PEFT trains whole."""
_MARKS = ("lora_", "oft_", "vera_")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def is_of_adapters(name: str) -> bool:
    """Whether a parameter or buffer of this full name came with PEFT's adapters."""
    return any(f".{mark}" in name for mark in (*_MARKS, "modules_to_save."))


def _attention_paths(model: nn.Module, spec: ModelSpec) -> list[str]:
    """Paths of the attention projections; GPT-2 has others of the same name outside of attention."""
    linears = (linear for group in spec.groups for linear in group.block.linears)
    names = {linear.name for linear in linears if linear.group == "attention"}
    parts = ((path, *path.rpartition(".")[::2]) for path, _ in model.named_modules())
    named = ((path, parent.rpartition(".")[2]) for path, parent, name in parts if name in names)
    return [path for path, parent in named if "att" in parent or parent == "mixer"]


def _parameters(adapter: Adapter) -> list[str]:
    return [target for target in adapter.targets if target.startswith(TARGET_PARAMETER)]


def _linear_modules(model: nn.Module, spec: ModelSpec) -> list[str]:
    """What PEFT's ``all-linear`` stands for: modules, and the matrices that a tensor of experts replaced.

    Source: peft 0.21 utils/transformers_weight_conversion.py _resolve_string_target_modules.
    """
    from peft import LoraConfig
    from peft.tuners.tuners_utils import _maybe_include_all_linear_layers

    config: Any = LoraConfig(target_modules="all-linear", task_type=_task_type(spec))
    _maybe_include_all_linear_layers(config, model)
    inside = (linear for group in spec.groups for linear in group.block.linears if linear.kind == "parameter")
    converted = {name for each in inside for name in each.legacy_names if not each.asked_rank}
    return sorted({*config.target_modules, *converted})


def _task_type(spec: ModelSpec) -> str:
    return "SEQ_CLS" if spec.head.name == SCORE else "CAUSAL_LM"


def _targets(model: nn.Module, adapter: Adapter, spec: ModelSpec) -> str | list[str]:
    """``target_modules`` as PEFT reads them: it knows ``all-linear`` alone, and not among names."""
    if adapter.targets == ("all-linear",):
        return "all-linear"
    named = [
        target
        for target in adapter.targets
        if target not in GROUP_TARGETS and target not in _parameters(adapter)
    ]
    if "all-linear" in adapter.targets:
        return named + _linear_modules(model, spec)
    return named + (_attention_paths(model, spec) if "attention" in adapter.targets else [])


def adapted(model: Any, recipe: Recipe, spec: ModelSpec) -> Any:
    """``model`` with layers of PEFT on the recipe's targets, in the recipe's dtype, none in frozen parts."""
    import peft

    adapter = recipe.adapter
    assert adapter is not None

    common: dict[str, Any] = {
        "target_modules": _targets(model, adapter, spec),
        "modules_to_save": list(adapter.modules_to_save) or None,
        "task_type": _task_type(spec),
    }
    if recipe.frozen:
        common["exclude_modules"] = [
            name for name, _ in model.named_modules() if part_of(name) in recipe.frozen
        ]
    config: peft.PeftConfig
    if adapter.oft_block_size:
        config = peft.OFTConfig(oft_block_size=adapter.oft_block_size, **common)
    elif adapter.vera:
        config = peft.VeraConfig(r=int(adapter.rank), vera_dropout=adapter.dropout, **common)
    else:
        config = peft.LoraConfig(
            r=int(adapter.rank),
            lora_alpha=2 * int(adapter.rank),
            lora_dropout=adapter.dropout,
            target_parameters=[each.removeprefix(TARGET_PARAMETER) for each in _parameters(adapter)] or None,
            use_dora=adapter.dora,
            **common,
        )
    made = peft.get_peft_model(model, config, autocast_adapter_dtype=adapter.dtype == "fp32")
    for name, tensor in made.named_parameters():
        if any(mark in name for mark in _MARKS) and tensor.dtype != DTYPES[adapter.dtype]:
            tensor.data = tensor.data.to(DTYPES[adapter.dtype])
    return made
