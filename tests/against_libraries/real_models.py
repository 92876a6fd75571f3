"""Real Transformers and PEFT modules on the CPU."""

from __future__ import annotations

import gc
from typing import Any

import torch
import transformers
from scenarios import Setup

# Tiny operators: more threads only get in the way of the other test processes.
torch.set_num_threads(1)
# What is imported stays: leaving it out makes each collection below cheap.
gc.collect()
gc.freeze()

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def build(config: dict[str, Any], setup: Setup) -> Any:
    """A random model of ``config``, with adapters where the setup has a rank, in training mode."""
    torch.manual_seed(0)
    fields = transformers.AutoConfig.for_model(**config)
    fields._attn_implementation = setup.attention
    model = transformers.AutoModelForCausalLM.from_config(fields, dtype=DTYPES[setup.dtype])
    if setup.rank:
        model = add_adapters(model, setup)
    model.train()
    if setup.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": setup.reentrant})
    return model


def add_adapters(model: Any, setup: Setup) -> Any:
    """``model`` wrapped by PEFT as the setup says; its input requires a gradient,
    as the Trainer arranges for checkpointing.
    """
    import peft

    targets: Any = "all-linear" if setup.targets == ("all-linear",) else list(setup.targets)
    config = peft.LoraConfig(
        r=setup.rank,
        target_modules=targets,
        lora_dropout=setup.dropout,
        modules_to_save=list(setup.modules_to_save) or None,
        task_type="CAUSAL_LM",
    )
    adapted = peft.get_peft_model(model, config)
    adapted.enable_input_require_grads()
    return adapted
