"""Real Transformers and PEFT modules on the CPU, and the bytes alive in them while they run."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from live_bytes import counting
from scenarios import BATCH, LENGTH, Setup

# Tiny operators: more threads only get in the way of the other test processes.
torch.set_num_threads(1)
# What is imported stays: leaving it out makes each collection below cheap.
gc.collect()
gc.freeze()

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Passes:
    """Bytes alive after the forward, and the most alive in forward and in backward,
    weights and their gradients left out.
    """

    saved: int
    forward_peak: int
    backward_peak: int


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


def run_passes(model: Any, *, padded: bool = False, backward: bool = True) -> Passes:
    """One forward of the decoder (without the head) and one backward,
    gradients existing already as in the second micro-step.

    Without ``backward`` the peak of the backward is what the forward left.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder = base.get_decoder()
    ids = torch.randint(0, base.config.vocab_size, (BATCH, LENGTH))
    inputs = {"input_ids": ids}
    if padded:
        mask = torch.ones_like(ids)
        mask[0, -LENGTH // 4 :] = 0
        inputs["attention_mask"] = mask
    for tensor in model.parameters():
        if tensor.requires_grad:
            tensor.grad = torch.zeros_like(tensor)
    gc.collect()
    with counting() as bytes_:
        loss = decoder(**inputs, use_cache=False).last_hidden_state.sum()
        gc.collect()
        saved, forward_peak = bytes_.live, bytes_.peak
        bytes_.peak = bytes_.live
        if backward:
            loss.backward()
        return Passes(saved, forward_peak, bytes_.peak)
