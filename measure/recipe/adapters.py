"""LoRA layers of PEFT on a model, where the recipe puts them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from planner.domain.model import ModelSpec
from planner.domain.recipe import Adapter

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _attention_paths(model: nn.Module, spec: ModelSpec) -> list[str]:
    """Paths of the attention projections; GPT-2 has others of the same name outside of attention."""
    linears = (linear for group in spec.groups for linear in group.block.linears)
    names = {linear.name for linear in linears if linear.group == "attention"}
    parts = ((path, *path.rpartition(".")[::2]) for path, _ in model.named_modules())
    return [path for path, parent, name in parts if name in names and "att" in parent.rpartition(".")[2]]


def adapted(model: Any, adapter: Adapter, spec: ModelSpec) -> Any:
    """``model`` with LoRA layers of PEFT on the recipe's targets, in the recipe's dtype."""
    import peft

    targets: Any = list(adapter.targets)
    if adapter.targets == ("all-linear",):
        targets = "all-linear"
    elif "attention" in adapter.targets:
        targets = [target for target in adapter.targets if target != "attention"] + _attention_paths(model, spec)
    config = peft.LoraConfig(
        r=int(adapter.rank),
        lora_alpha=2 * int(adapter.rank),
        target_modules=targets,
        lora_dropout=adapter.dropout,
        modules_to_save=list(adapter.modules_to_save) or None,
        task_type="CAUSAL_LM",
    )
    made = peft.get_peft_model(model, config, autocast_adapter_dtype=adapter.dtype == "fp32")
    for name, tensor in made.named_parameters():
        if "lora_" in name and tensor.dtype != DTYPES[adapter.dtype]:
            tensor.data = tensor.data.to(DTYPES[adapter.dtype])
    return made
