"""Copies of weights that matrices work with: expanded k-bit ones, and those that autocast makes.

Sources: bitsandbytes 0.50 ``autograd/_functions.py``, torch 2.13 ``ATen/autocast_mode.h``.
"""

from __future__ import annotations

from planner.anatomy.inputs import input_bytes
from planner.anatomy.int8 import is_int8
from planner.anatomy.ledger import BlockView
from planner.domain.model import LinearSpec


def is_4bit(view: BlockView) -> bool:
    """Whether the base is quantised to 4 bits by bitsandbytes."""
    return view.recipe.numerics.quantization in ("nf4", "fp4")


def dequantized_bytes(view: BlockView, linear: LinearSpec) -> int:
    """Bytes of one expanded weight: compute dtype for 4-bit (plus fp32 block scales), the input's dtype for int8.

    Source: bitsandbytes 0.50 autograd/_functions.py (MatMul4Bit.backward, MatMul8bitLt.backward).
    """
    if not view.quantized(linear):
        # The gradient of a 16-bit copy of a trained fp32 weight is made in 16-bit, and then widened.
        return linear.weight_count * view.regime.compute if view.trains_base and is_recast(view, linear) else 0
    elements, in_bytes = expanded_elements(view, linear), input_bytes(view, linear)
    if is_int8(view):
        return elements * in_bytes
    if is_4bit(view):
        return elements * view.regime.compute + elements // 64 * 4
    # GPTQ's PyTorch path unpacks to int32, shifts and masks into a second int32 tensor, then scales: 4 + 4 + 2 bytes at once.
    return elements * 10


def expanded_elements(view: BlockView, linear: LinearSpec) -> int:
    """Elements of the weight that one product expands: a matrix, or the tensor of all experts of a layer.

    Source: unsloth_zoo 2026.10.9 temporary_patches/moe_utils_bnb4bit.py:314-343, gpt_oss_grouped_qlora.py:142.
    """
    return linear.weight_count if is_grouped(view, linear) else linear.in_features * linear.out_features


def gptq_kept_bytes(view: BlockView, linears: list[LinearSpec]) -> int:
    """Expanded GPTQ weights that autograd keeps: the product ``x @ weight`` saves ``weight`` for the gradient of ``x``.

    Formula: 2 bytes per element of each GPTQ matrix, until that layer's backward.  Source: auto_gptq 0.5.1
    nn_modules/qlinear/qlinear_cuda.py forward (``torch.matmul`` of the expanded weight).
    """
    if view.recipe.numerics.quantization != "gptq-int4":
        return 0
    matrices = (linear for linear in linears if view.quantized(linear) and view.needs_gradient(linear))
    return sum(linear.weight_count * view.regime.compute for linear in matrices)


def cast_weight_bytes(view: BlockView, linears: list[LinearSpec]) -> int:
    """Copies of weights that autocast made because they were loaded in another dtype, kept for the gradient of the input.

    Formula: compute bytes per element of each plain matrix whose dtype is not that of autocast (fp16 weights under bf16 as well).
    With checkpointing the layer's copies are made again when it is rebuilt; those of trained fp32 weights also stay cached
    until the forward ends (``planner.memory.weights:autocast_copy_bytes``).
    Source: torch 2.13 aten/src/ATen/autocast_mode.cpp cached_cast (only fp32 leaves that need a gradient are cached); ``linear``
    saves the weight it used.
    """
    matrices = (linear for linear in linears if is_recast(view, linear) and view.needs_gradient(linear))
    return sum(linear.weight_count * view.regime.compute for linear in matrices)


def is_grouped(view: BlockView, linear: LinearSpec) -> bool:
    """Whether the matrices of all experts are one tensor, which autocast does not see."""
    return linear.group == "expert" and linear.kind == "parameter" and view.stack.fused_experts


def is_recast(view: BlockView, linear: LinearSpec) -> bool:
    """Whether autocast copies this weight: matrix products do; grouped products of fused experts are not on its lists.

    Source: torch 2.13 ATen/autocast_mode.h (no ``_grouped_mm``); transformers 5.23 integrations/moe.py _grouped_mm.
    """
    regime = view.regime
    if not (regime.autocast and regime.recasts) or view.quantized(linear):
        return False
    return linear.kind != "parameter" or not view.stack.fused_experts
