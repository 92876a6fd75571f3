"""What cards, stacks and model code can run: bf16, attention kernels, optimizers, the Liger loss."""

from __future__ import annotations

import re

from planner.domain.hardware import GpuSpec
from planner.domain.model import ModelSpec
from planner.domain.recipe import Attention
from planner.domain.stack import Stack

# bitsandbytes steps these on the GPU only.
GPU_ONLY_OPTIMIZERS = frozenset({"adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"})
_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9])")

# Stacks that run the modules of Transformers as they are.
_TRANSFORMERS_4_STACKS = frozenset({"hf-trainer@4", "hf-trainer@4-noprep", "firefly"})
_TRANSFORMERS_STACKS = _TRANSFORMERS_4_STACKS | {"hf-trainer@5", "trl", "llama-factory", "axolotl", "swift"}
# Stacks with a switch for Liger's fused head and loss.  Transformers has one since 4.45, after
# hf-trainer@4 (training_args.py use_liger_kernel); LLaMA-Factory enable_liger_kernel, swift use_liger_kernel, axolotl
# liger_fused_linear_cross_entropy.
LIGER_STACKS = frozenset({"hf-trainer@5", "trl", "llama-factory", "axolotl", "swift"})

# Source: transformers 5.23.0 models/*/modeling_*.py, `_supports_sdpa` and `_supports_flash_attn` absent or False.
_NO_SDPA = frozenset({"bloom", "mpt", "gptj", "gemma2", "gpt_oss"})
_NO_FLASH = frozenset({"bloom", "mpt"})
# The same in transformers 4.36 to 4.38, where fewer classes had been moved to torch's kernel.
_NO_SDPA_BEFORE_2024_09 = _NO_SDPA | {"gpt2", "gpt_neox", "opt", "phi", "stablelm"}


def compute_capability(gpu: GpuSpec) -> tuple[int, int] | None:
    """CUDA compute capability, or ``None`` for another kind of device or an unlisted card."""
    match = _CAPABILITY.fullmatch(gpu.compute_capability) if gpu.is_cuda else None
    return (int(match[1]), int(match[2])) if match else None


def lacks_bf16(gpu: GpuSpec) -> bool:
    """Whether the card is known to have no bf16 matrix units.  An unlisted card is not known to lack them."""
    capability = compute_capability(gpu)
    return capability is not None and not gpu.supports_bf16


def lacks_flash2(gpu: GpuSpec) -> bool:
    """Whether FlashAttention 2 is known not to run: it needs compute capability 8.0, or an accelerator at all."""
    capability = compute_capability(gpu)
    return gpu.vendor == "none" or (capability is not None and capability < (8, 0))


def code_lacks(model: ModelSpec, stack: Stack, attention: Attention) -> bool:
    """Whether the model's code in Transformers has no such attention kernel."""
    if stack.id not in _TRANSFORMERS_STACKS or model.remote_code or attention == "eager":
        return False
    if attention == "flash2":
        return model.architecture in _NO_FLASH
    return model.architecture in (_NO_SDPA_BEFORE_2024_09 if stack.id in _TRANSFORMERS_4_STACKS else _NO_SDPA)


def widest_head(model: ModelSpec) -> int:
    """Largest head dimension of any layer."""
    return max(max(group.block.attention.head_dim, group.block.attention.value_head_dim) for group in model.groups)
