"""How Transformer Engine keeps what it casts to 8 bits, by recipe and card.

Source: TransformerEngine d0067d0d (2.20.0.dev0) pytorch/csrc/quantizer.cpp create_tensor of each quantizer,
pytorch/utils.py is_non_tn_fp8_gemm_supported, common/recipe/__init__.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.hardware import GpuSpec
from planner.domain.recipes.fp8 import te_scaling
from planner.domain.recipes.recipe import Numerics
from planner.units import MIB

_HOPPER = 9
_ANY_LAYOUT = (10, 11)
"""Major compute capabilities whose products take operands that are not turned, and scales of MXFP8."""
_BLOCK = {"blockwise": 4 / 128, "mxfp8": 1 / 32}
"""Bytes of scales for each element: an fp32 number for 128 of them, a byte for 32."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """One recipe on one card.

    ``by_tensor``: one scale for all of a tensor; ``delayed``: known before, so that a norm writes 8 bits.
    ``turned``: products along the other side read a second tensor, which is turned or has other scales.
    ``scale_bytes``: of scales for each element; those of weights are in squares (``square``).
    """

    by_tensor: bool
    delayed: bool
    turned: bool
    scale_bytes: float
    square: bool


def scaling_of(numerics: Numerics, gpu: GpuSpec) -> Scaling | None:
    """That of a job, or ``None`` without products of Transformer Engine."""
    name = te_scaling(numerics.fp8)
    if not name:
        return None
    by_tensor = name not in _BLOCK
    return Scaling(
        by_tensor=by_tensor,
        delayed=name == "delayed",
        turned=not (by_tensor and _major(gpu) in _ANY_LAYOUT),
        scale_bytes=_BLOCK.get(name, 0.0),
        square=name == "blockwise",
    )


def workspace_bytes(gpu: GpuSpec) -> int:
    """What its products have to work in, beside PyTorch's.

    Source: pytorch/cpp_extensions/gemm.py get_cublas_workspace_size_bytes.
    """
    return 32 * MIB + 1024 if _major(gpu) >= _HOPPER else 4 * MIB


def takes_blocks(numerics: Numerics, gpu: GpuSpec) -> bool:
    """Whether the card has products with the scales of the recipe.

    Source: pytorch/quantization.py _compute_mxfp8_support, _compute_fp8_block_scaling_support.
    """
    name = te_scaling(numerics.fp8)
    return _major(gpu) in _ANY_LAYOUT if name == "mxfp8" else name != "blockwise" or _major(gpu) >= _HOPPER


def _major(gpu: GpuSpec) -> int:
    major = gpu.compute_capability.partition(".")[0]
    return int(major) if major.isdigit() else 0
