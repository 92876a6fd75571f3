"""DeepSpeed's kernels that quantise what ZeRO++ sends: each takes the tensors that it gives back, and no
values are computed.

Source: deepspeed 0.19.8 ops/csrc/quantization/pt_binding.cpp.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

_SYMMETRIC = 0


def quantizer() -> SimpleNamespace:
    """The module that DeepSpeed compiles, as far as ZeRO++ calls it."""
    return SimpleNamespace(
        Symmetric=_SYMMETRIC,
        quantize=_quantize,
        dequantize=_dequantize,
        swizzle_quant=_swizzle_quant,
        quantized_reduction=_quantized_reduction,
    )


def _scales(groups: int, like: Any) -> Any:
    return torch.empty((groups, 1), dtype=torch.float32, device=like.device)


def _quantize(values: Any, groups: int, bits: int, _: int) -> list[Any]:
    """``quantize_kernel``: scales first."""
    scales = _scales(groups, values)
    shape = (*values.shape[:-1], values.shape[-1] * bits // 8)
    return [torch.empty(shape, dtype=torch.int8, device=values.device), scales]


def _dequantize(values: Any, _: Any, __: int, bits: int, ___: int) -> Any:
    """``dequantize<__half>``."""
    shape = (*values.shape[:-1], values.shape[-1] * 8 // bits)
    return torch.empty(shape, dtype=torch.float16, device=values.device)


def _swizzle_quant(values: Any, groups: int, bits: int, *_: int) -> list[Any]:
    """``ds_swizzle_quant``: scales first, and the values flat."""
    scales = _scales(groups, values)
    return [torch.empty((values.numel() * bits // 8,), dtype=torch.int8, device=values.device), scales]


def _quantized_reduction(values: Any, *given: Any) -> list[Any]:
    """``quantized_reduction``: one part of as many as there are GPUs in a node."""
    groups, devices = given[2], given[-1]
    scales = _scales(groups, values)
    shape = (*values.shape[:-1], values.shape[-1] // devices)
    return [torch.empty(shape, dtype=torch.int8, device=values.device), scales]
