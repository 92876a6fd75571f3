"""What a stack does where the user says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.domain.recipes.attention_kernels import Attention
from planner.domain.recipes.optimizers import Optimizer
from planner.domain.recipes.recipe import CheckpointPolicy, Loss, Padding, Precision
from planner.domain.recipes.sharding import ShardingName


@dataclass(frozen=True, slots=True)
class StackDefaults:
    """What a stack does where the user says nothing.

    ``adapter_dtype`` ``base``: adapters take the dtype of the weight that they adapt, and fp32 over k-bit
    weights.  ``sharding``: how several GPUs share the model.  ``offload``: what leaves the GPU without being
    asked to, where every layer is checkpointed.
    """

    load_dtype: Literal["checkpoint", "fp32", "bf16", "fp16"]
    precision: Precision
    adapter_dtype: Literal["fp32", "bf16", "fp16", "base"]
    optimizer: Optimizer
    attention: Attention
    loss: Loss
    padding: Padding
    gradient_checkpointing: bool
    checkpoint_reentrant: bool
    checkpoint_policy: CheckpointPolicy
    sharding: ShardingName
    offload: Literal["none", "activations"]
    lora_rank: int
    lora_targets: tuple[str, ...]
    lora_dropout: float
