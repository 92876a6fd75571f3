"""Stand-in for bitsandbytes' ``Linear8bitLt`` as it runs on CUDA: LLM.int8() with a threshold for outlier columns.

On a CPU the real layer trains through another class (``MatMul8bitFp``), so the CUDA path is written out here, step by step, from
bitsandbytes 0.50: autograd/_functions.py ``MatMul8bitLt``, backends/cuda/ops.py and backends/default/ops.py.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from planner.errors import NotModelledError

OUTLIER_SHARE = 1000
"""One input column in so many holds a value at or above the threshold (arXiv 2208.07339, section 4: about 0.1 %).

The true number depends on the data.  What matters to memory is that there are any: the layer then adds a product in the 16-bit
dtype of autocast, which its output keeps.
"""


def int8_stand_in(layer: Any, loaded: torch.dtype) -> None:
    """Turn a real ``Linear8bitLt`` on meta into a stand-in that holds int8 weights and one fp32 scale per row."""
    n_elements = layer.out_features * layer.in_features
    weight: Any = nn.Parameter(torch.empty((layer.out_features, layer.in_features), dtype=torch.int8, device="meta"), False)
    # The tensor as loaded, and the fp16 copy that is quantised (nn/modules.py Int8Params._quantize).
    weight.loading_bytes = n_elements * (loaded.itemsize + 2)
    layer.weight = weight
    layer.register_buffer("SCB", torch.empty(layer.out_features, dtype=torch.float32, device="meta"))
    layer.__class__ = type("Linear8bitLt", (type(layer),), {"forward": _forward})


def _forward(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
    """``Linear8bitLt.forward``: the bias takes the dtype of the input, for good."""
    if layer.bias is not None and layer.bias.dtype != inputs.dtype:
        layer.bias.data = layer.bias.data.to(inputs.dtype)
    out: torch.Tensor = MatMul8bit.apply(inputs, layer.bias, layer)  # type: ignore[no-untyped-call]
    return out


# MatMul8bitLt makes rows of what has three dimensions (autograd/_functions.py).
_MOST_DIMENSIONS = 3


class MatMul8bit(torch.autograd.Function):
    """``MatMul8bitLt``: the input is kept as an attribute of the context, where saved-tensor hooks do not see it.

    So non-reentrant checkpointing keeps the inputs of all layers.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, bias: torch.Tensor | None, layer: Any) -> torch.Tensor:
        """Quantise the input, multiply, keep the input on the context.

        Raises:
            NotModelledError: an input of four dimensions, of which the real layer would take the outliers along the wrong one
                (``A[:, outlier_cols]`` in backends/default/ops.py int8_mixed_scaled_mm; only three are made two).
        """
        shape = inputs.shape
        if len(shape) > _MOST_DIMENSIONS:
            size = f"{layer.in_features} x {layer.out_features}"
            raise NotModelledError(
                f"int8 layers of bitsandbytes take inputs of two or three dimensions, but one of {size} features gets "
                f"{len(shape)} here (latent attention does that); use --method qlora"
            )
        rows = inputs.reshape(-1, shape[-1]) if inputs.dim() == 3 else inputs
        quantized = _quantize_rows(rows.to(torch.float16))
        out, outliers = _multiply(rows, quantized, bias, layer)
        ctx.layer, ctx.shape, ctx.dtype = layer, shape, rows.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.tensors = (outliers, rows) if ctx.needs_input_grad[0] else None
        ctx.columns = quantized[2]
        return out.reshape(*shape[:-1], layer.out_features) if len(shape) == 3 else out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        """Expand the matrix in the dtype of the input and multiply."""
        (gradient,) = gradients
        layer = ctx.layer
        bias = gradient.sum(0, dtype=ctx.bias_dtype) if ctx.needs_input_grad[1] else None
        if gradient.dim() == 3:
            gradient = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        if not ctx.needs_input_grad[0]:
            return None, bias, None
        # Named so that the recorder takes it for the expanded matrix: a plain ``empty`` in place of ``weight.to``.
        expanded = torch.empty(layer.weight.shape, dtype=ctx.dtype, device=gradient.device)
        expanded.mul_(layer.SCB.unsqueeze(1).mul(1.0 / 127.0))
        return torch.matmul(gradient.to(ctx.dtype), expanded).view(ctx.shape), bias, None


def _quantize_rows(half: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``int8_vectorwise_quant`` on CUDA with a threshold: int8 rows, their scales, the columns that hold outliers."""
    scales = half.new_empty(half.shape[0], dtype=torch.float32)
    rows = half.new_empty(half.shape, dtype=torch.int8)
    outliers = half.abs() >= 6.0
    outliers.any()
    outliers.any(dim=0)
    columns = half.new_zeros(math.ceil(half.shape[1] / OUTLIER_SHARE), dtype=torch.int64)
    rows[:, columns] = 0
    return rows, scales, columns


def _multiply(
    rows: torch.Tensor, quantized: tuple[torch.Tensor, ...], bias: torch.Tensor | None, layer: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``int8_mixed_scaled_mm``: the int8 product, to which the product of the outlier columns is added."""
    columns = quantized[2]
    outliers = rows[:, columns].contiguous()
    part = layer.weight[:, columns].contiguous()
    wide = part * layer.SCB.unsqueeze(1) * 7.874015718698502e-3  # the scale of int8_vectorwise_dequant, 1 / 127
    expanded = wide.to(rows.dtype).t()
    out = _int8_product(rows, quantized, bias, layer)
    return out.addmm(outliers, expanded), outliers


def _int8_product(rows: torch.Tensor, quantized: tuple[torch.Tensor, ...], bias: torch.Tensor | None, layer: Any) -> torch.Tensor:
    """``int8_scaled_mm``: an int32 product, scaled into fp16, then cast to the dtype of the input."""
    shape = (rows.shape[0], layer.out_features)
    product = quantized[0].new_empty(shape, dtype=torch.int32)
    half = product.new_empty(shape, dtype=torch.float16)
    if bias is not None and bias.dtype != torch.float16:
        half.add_(bias)
    return half.to(rows.dtype)
