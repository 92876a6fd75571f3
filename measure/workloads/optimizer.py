"""Optimizers by their Hugging Face names, with the parameter groups of the Trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from planner.domain.recipe import Optimizer

MAX_GRAD_NORM = 1.0
LEARNING_RATE = 1e-4
_WEIGHT_DECAY = 0.01
# The Trainer's patterns for parameters without weight decay (transformers 5.23 trainer.py get_decay_parameter_names).
_NO_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Trained parameters with and without weight decay, as the Trainer groups them."""
    from transformers.trainer_pt_utils import get_parameter_names

    names: Any = get_parameter_names
    decayed = set(names(model, [nn.LayerNorm], _NO_DECAY))
    trained = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
    groups = [
        {"params": [tensor for name, tensor in trained if name in decayed], "weight_decay": _WEIGHT_DECAY},
        {"params": [tensor for name, tensor in trained if name not in decayed], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module, optimizer: Optimizer) -> torch.optim.Optimizer:
    """The optimizer that the Trainer makes for this name (transformers 5.23 trainer_optimizer.py)."""
    groups: Any = parameter_groups(model)
    if optimizer == "adamw_torch":
        return torch.optim.AdamW(groups, lr=LEARNING_RATE)
    if optimizer == "adamw_torch_fused":
        return torch.optim.AdamW(groups, lr=LEARNING_RATE, fused=True)
    if optimizer == "sgd":
        return torch.optim.SGD(groups, lr=LEARNING_RATE)
    if optimizer == "adafactor":
        from transformers.optimization import Adafactor

        make: Any = Adafactor
        return make(groups, lr=LEARNING_RATE, scale_parameter=False, relative_step=False)  # type: ignore[no-any-return]
    return _bitsandbytes_optimizer(groups, optimizer)


def _bitsandbytes_optimizer(groups: Any, optimizer: Optimizer) -> torch.optim.Optimizer:
    import bitsandbytes

    optim: Any = bitsandbytes.optim
    make: Any = {
        "adamw_8bit": (optim.AdamW, {"optim_bits": 8}),
        "paged_adamw_8bit": (optim.AdamW, {"optim_bits": 8, "is_paged": True}),
        "paged_adamw_32bit": (optim.AdamW, {"is_paged": True}),
        "lion": (optim.Lion, {}),
    }
    kind, settings = make[optimizer]
    return kind(groups, lr=LEARNING_RATE, **settings)  # type: ignore[no-any-return]
