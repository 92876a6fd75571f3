"""What cards, stacks and model code can run: bf16, attention kernels, optimizers, the Liger loss."""

from __future__ import annotations

import re

from planner.domain.hardware import GpuSpec
from planner.domain.model import ModelSpec
from planner.domain.recipes.recipe import Attention
from planner.domain.recipes.sharding import Sharding
from planner.domain.stack import Stack

# bitsandbytes steps these on the GPU only before 0.50 (backends/cpu/ops.py has 8-bit steps since, which are
# not modelled); torchao's step was read as it is compiled for one.
GPU_ONLY_OPTIMIZERS = frozenset(
    {"adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "adamw_torch_8bit", "adamw_torch_4bit"}
)
# Those of torch itself, and torchao's, which makes DTensors of its states (torchao 0.17 optim/adam.py
# _new_buffer).  The kernels of bitsandbytes and the plain sums of Transformers' Adafactor refuse the DTensors
# of FSDP2 (bitsandbytes 0.50.2, issue 1633; transformers 5.23.0 optimization.py):
# tests/against_libraries/test_optimizers_of_fsdp2.py.  Whose Muon gathers them a rule says.
_DTENSOR_OPTIMIZERS = frozenset(
    {"adamw_torch", "adamw_torch_fused", "adamw_torch_8bit", "adamw_torch_4bit", "sgd", "rmsprop", "muon"}
)
_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9])")

# Source: transformers 5.23.0 models/*/modeling_*.py,
# `_supports_sdpa` and `_supports_flash_attn` absent or False.
_NO_SDPA = frozenset({"bloom", "mpt", "gptj", "gemma2", "gpt_oss"})
_NO_FLASH = frozenset({"bloom", "mpt", "llama4", "llama4_text"})
# Modules that ship with the checkpoint and write attention out.  Source:
# mosaicml/llm-foundry layers/attention.py.
_REMOTE_NO_SDPA = frozenset({"mosaic_gpt"})
# The same in transformers 4.36 to 4.38, where fewer classes had been moved to torch's kernel.
_NO_SDPA_BEFORE_2024_09 = _NO_SDPA | {"gpt2", "gpt_neox", "opt", "phi", "stablelm"}


def cannot_step(optimizer: str, sharding: Sharding) -> bool:
    """Whether the optimizer fails on the weights that this sharding hands it: FSDP2's are DTensors."""
    return sharding.dtensors and optimizer not in _DTENSOR_OPTIMIZERS


def compute_capability(gpu: GpuSpec) -> tuple[int, int] | None:
    """CUDA compute capability, or ``None`` for another kind of device or an unlisted card."""
    match = _CAPABILITY.fullmatch(gpu.compute_capability) if gpu.is_cuda else None
    return (int(match[1]), int(match[2])) if match else None


def lacks_bf16(gpu: GpuSpec) -> bool:
    """Whether the card is known to have no bf16 matrix units.  An unlisted card is not known to lack them."""
    capability = compute_capability(gpu)
    return capability is not None and not gpu.supports_bf16


def lacks_flash2(gpu: GpuSpec) -> bool:
    """Whether FlashAttention 2 is known not to run: it needs compute capability 8.0,
    or an accelerator at all.
    """
    capability = compute_capability(gpu)
    return gpu.vendor == "none" or (capability is not None and capability < (8, 0))


def code_lacks(model: ModelSpec, stack: Stack, attention: Attention) -> bool:
    """Whether the model's code, in Transformers or shipped with the checkpoint,
    has no such attention kernel.
    """
    if model.remote_code:
        return attention == "sdpa" and model.architecture in _REMOTE_NO_SDPA
    if attention == "eager":
        return False
    if stack.model_code == "own":
        return attention == "flash2" and has_sinks(model)
    if attention == "flash2":
        return model.architecture in _NO_FLASH or has_sinks(model)
    return model.architecture in (
        _NO_SDPA_BEFORE_2024_09 if stack.model_code == "transformers-4" else _NO_SDPA
    )


def has_sinks(model: ModelSpec) -> bool:
    """Whether attention has a learned sink per head, which FlashAttention 2 does not take.

    For gpt-oss Transformers puts FlashAttention 3 in its place (5.23.0, modeling_utils.py:1754-1773 and
    models/gpt_oss/modeling_gpt_oss.py:390-395), whose backward knows no sinks (issue 1895 of
    Dao-AILab/flash-attention): it answers prompts, and does not train.
    """
    return any(group.block.attention.sinks for group in model.groups)


def widest_head(model: ModelSpec) -> int:
    """Largest head dimension of any layer."""
    return max(
        max(group.block.attention.head_dim, group.block.attention.value_head_dim) for group in model.groups
    )
