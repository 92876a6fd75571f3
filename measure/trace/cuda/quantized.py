"""Stand-ins for bitsandbytes' linear layers: they store, expand and keep what the real ones do on CUDA.

The real layers quantise by kernels that fake tensors cannot run.  PEFT wraps the stand-ins with its real LoRA
layers, because they are subclasses of the real classes.
"""

# ruff: noqa: SLF001 - what torch and Transformers call private here has no public name

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from unittest import mock

import torch
from torch import nn
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.quantizers.quantizer_bnb_8bit import Bnb8BitHfQuantizer

from measure.recipe.adapters import DTYPES
from measure.recipe.kbit import FOUR_BIT, quantization_config
from measure.trace.cuda.outliers import OUTLIER_SHARE
from measure.trace.cuda.stored_fp8 import store_in_fp8
from planner.domain.recipes.recipe import Recipe
from planner.errors import NotModelledError

BLOCK_ELEMENTS = 64
NESTED_BLOCKS = 256
# Names under which a stand-in keeps its quantisation constants.
CONSTANTS = frozenset({
    *("absmax", "nested_absmax", "offset", "code", "SCB"),
    *("weight_scale_inv", "gate_up_proj_scale_inv", "up_proj_scale_inv", "down_proj_scale_inv"),
})  # fmt: skip


def quantize_on_meta(model: Any, recipe: Recipe, whole: Sequence[str] = ()) -> None:
    """Replace the linear layers that Transformers would quantise, by its own choice of modules.

    ``whole``: paths of matrices that the checkpoint holds as they were.

    Raises:
        NotModelledError: a quantisation that is not traced.
    """
    numerics, config = recipe.numerics, quantization_config(recipe, whole)
    if numerics.quantization == "fp8":
        store_in_fp8(model, numerics.packing.group, whole)
        return
    if config is None:
        raise NotModelledError(
            f"quantization '{numerics.quantization}' cannot be traced: gptqmodel chooses among its kernels "
            "when it loads, and each expands weights in its own way; use --method qlora, or ask for a "
            "prediction: plan --model ..."
        )
    four_bit = numerics.quantization in FOUR_BIT
    quantizer: Any = (Bnb4BitHfQuantizer if four_bit else Bnb8BitHfQuantizer)(config)
    quantizer._process_model_before_weight_loading(model, device_map=None)
    for module in _named(model, "Linear4bit" if four_bit else "Linear8bitLt"):
        (_stand_in if four_bit else int8_stand_in)(module, DTYPES[numerics.load_dtype])
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = four_bit, not four_bit
    model.is_quantized = True


def is_packed(tensor: torch.Tensor) -> bool:
    """Whether a parameter holds the bytes of a k-bit matrix, whatever its dtype says."""
    return hasattr(tensor, "arrival")


def _named(model: nn.Module, class_name: str) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__ == class_name]


class Params4bit(nn.Parameter):
    """Packed bytes.  PEFT's preparation widens 16-bit parameters,
    but none of a class of this name (peft 0.21 utils/other.py).
    """


def _stand_in(layer: Any, loaded: torch.dtype) -> None:
    """Turn a real ``Linear4bit`` on meta into a stand-in that holds its packed bytes and constants.

    ``arrival`` of the weight has in turn what comes to the card: names of what stays, and bytes of what goes
    once all is there.  The matrix in full is quantised with its fp32 scales; those are quantised less their
    mean (bitsandbytes 0.50 functional.py quantize_4bit).
    """
    out_features, in_features = layer.out_features, layer.in_features
    old = layer.weight
    n_elements = out_features * in_features
    n_blocks = math.ceil(n_elements / BLOCK_ELEMENTS)
    packed = n_elements // 2 // old.quant_storage.itemsize
    weight = Params4bit(torch.empty((packed, 1), dtype=old.quant_storage, device="meta"), requires_grad=False)
    whole, scales = n_elements * loaded.itemsize, n_blocks * 4
    nested = (whole, scales, "weight", scales, "offset", "nested_absmax", "absmax", "code")
    # PEFT copies these when it wraps the layer.
    facts = {
        "compress_statistics": old.compress_statistics,
        "quant_type": old.quant_type,
        "arrival": nested if old.compress_statistics else (whole, "absmax", "weight", "code"),
    }
    for name, value in facts.items():
        setattr(weight, name, value)
    layer.weight = weight
    layer.expanded_dtype = loaded
    layer.nested = old.compress_statistics
    if layer.nested:
        layer.register_buffer("absmax", torch.empty(n_blocks, dtype=torch.uint8, device="meta"))
        layer.register_buffer(
            "nested_absmax", torch.empty(math.ceil(n_blocks / NESTED_BLOCKS), device="meta")
        )
        layer.register_buffer("offset", torch.empty((), device="meta"))
    else:
        layer.register_buffer("absmax", torch.empty(n_blocks, device="meta"))
    layer.register_buffer("code", torch.empty(16, device="meta"))
    layer.__class__ = _stand_in_class(type(layer))


def _stand_in_class(real: type) -> type:
    return type("Linear4bit", (real,), {"forward": _forward_4bit})


def _forward_4bit(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
    """``Linear4bit.forward`` of bitsandbytes 0.50 (nn/modules.py): cast, multiply, cast back; the bias takes
    the dtype of the product for good.
    """
    dtype = inputs.dtype
    if layer.compute_dtype is not None:
        inputs = inputs.to(layer.compute_dtype)
    _cast_bias(layer, inputs.dtype)
    product: Any = _MatMul4Bit.apply
    return cast("torch.Tensor", product(inputs, layer.bias, layer).to(dtype))


def _cast_bias(layer: Any, dtype: torch.dtype) -> None:
    if layer.bias is not None and layer.bias.dtype != dtype:
        layer.bias.data = layer.bias.data.to(dtype)


class _MatMul4Bit(torch.autograd.Function):
    """``MatMul4Bit`` of bitsandbytes 0.50 (autograd/_functions.py): nothing is kept,
    the matrix is expanded in both passes.

    Up to 1536 tokens some cards multiply without expanding in the forward pass (backends/cuda/ops.py
    gemm_4bit).  Here the weight is always expanded, which then counts one matrix more, of the widest linear
    layer at most.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, bias: torch.Tensor | None, layer: Any) -> torch.Tensor:
        ctx.layer, ctx.has_bias = layer, bias is not None
        scales = _scales(layer, in_place=False)
        expanded = torch.empty(
            (layer.out_features, layer.in_features), dtype=inputs.dtype, device=inputs.device
        )
        del scales
        return nn.functional.linear(inputs, expanded, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        (gradient,) = gradients
        bias = gradient.sum(0) if ctx.has_bias and ctx.needs_input_grad[1] else None
        return (
            (torch.matmul(gradient, _expanded(ctx.layer, gradient)) if ctx.needs_input_grad[0] else None),
            bias,
            None,
        )


def _expanded(layer: Any, gradient: torch.Tensor) -> torch.Tensor:
    """The matrix in the gradient's dtype: ``dequantize_4bit`` returns the one that was quantised,
    which goes when it is cast.
    """
    scales = _scales(layer, in_place=True)
    expanded = torch.empty(
        (layer.out_features, layer.in_features), dtype=layer.expanded_dtype, device=gradient.device
    )
    del scales
    return expanded.to(gradient.dtype)


def dequantized(layer: Any) -> torch.Tensor:
    """``dequantize_4bit`` of a stand-in: a matrix in the dtype that was quantised,
    on the device of its bytes.
    """
    scales = _scales(layer, in_place=True)
    expanded = torch.empty(
        (layer.out_features, layer.in_features), dtype=layer.expanded_dtype, device=layer.weight.device
    )
    del scales
    return expanded


@contextmanager
def dora_reads_stand_ins() -> Iterator[None]:
    """Let DoRA's layers dequantise stand-ins; all other weights as before."""
    dora = importlib.import_module("peft.tuners.lora.dora")
    original = dora.dequantize_module_weight

    def read(module: Any) -> torch.Tensor:
        weight: torch.Tensor = dequantized(module) if hasattr(module, "expanded_dtype") else original(module)
        return weight

    with mock.patch.object(dora, "dequantize_module_weight", read):
        yield


def _scales(layer: Any, *, in_place: bool) -> torch.Tensor | None:
    """fp32 scales of doubly quantised ones: ``dequantize_4bit`` adds the offset in place,
    ``gemm_4bit`` makes another copy.
    """
    if not layer.nested:
        return None
    scales = torch.empty(layer.absmax.shape, dtype=torch.float32, device=layer.absmax.device)
    return scales.add_(layer.offset) if in_place else scales + layer.offset


# Stand-in for bitsandbytes' ``Linear8bitLt`` as it runs on CUDA: LLM.int8()
# with a threshold for outlier columns.
#
# On a CPU the real layer trains through another class (``MatMul8bitFp``), so the CUDA path is written out
# here, step by step, from bitsandbytes 0.50: autograd/_functions.py ``MatMul8bitLt``, backends/cuda/ops.py
# and backends/default/ops.py.


def int8_stand_in(layer: Any, loaded: torch.dtype) -> None:
    """Turn a real ``Linear8bitLt`` on meta into a stand-in that holds int8 weights and one fp32 scale per
    row.
    """
    n_elements = layer.out_features * layer.in_features
    weight: Any = nn.Parameter(
        torch.empty((layer.out_features, layer.in_features), dtype=torch.int8, device="meta"), False
    )
    # The tensor as loaded, and the fp16 copy that is quantised (nn/modules.py Int8Params._quantize).
    weight.arrival = (n_elements * loaded.itemsize, n_elements * 2, "weight", "SCB")
    layer.weight = weight
    layer.register_buffer("SCB", torch.empty(layer.out_features, dtype=torch.float32, device="meta"))
    layer.__class__ = type("Linear8bitLt", (type(layer),), {"forward": _forward})


def _forward(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
    """``Linear8bitLt.forward``: the bias takes the dtype of the input, for good."""
    _cast_bias(layer, inputs.dtype)
    out: torch.Tensor = MatMul8bit.apply(inputs, layer.bias, layer)  # type: ignore[no-untyped-call]
    return out


# MatMul8bitLt makes rows of what has three dimensions (autograd/_functions.py).
_MOST_DIMENSIONS = 3


class MatMul8bit(torch.autograd.Function):
    """``MatMul8bitLt``: the input is kept as an attribute of the context,
    where saved-tensor hooks do not see it.

    So non-reentrant checkpointing keeps the inputs of all layers.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, bias: torch.Tensor | None, layer: Any) -> torch.Tensor:
        """Quantise the input, multiply, keep the input on the context.

        Raises:
            NotModelledError: an input of four dimensions, of which the real layer would take the outliers
                along the wrong one (``A[:, outlier_cols]`` in backends/default/ops.py int8_mixed_scaled_mm;
                only three are made two).
        """
        shape = inputs.shape
        if len(shape) > _MOST_DIMENSIONS:
            size = f"{layer.in_features} x {layer.out_features}"
            raise NotModelledError(
                f"int8 layers of bitsandbytes take inputs of two or three dimensions, but one of {size} "
                f"features gets {len(shape)} here (latent attention does that); use --method qlora"
            )
        rows = inputs.reshape(-1, shape[-1]) if inputs.dim() == 3 else inputs
        quantized = _quantize_rows(rows.to(torch.float16))
        out, outliers = _multiply(rows, quantized, bias, layer)
        ctx.layer, ctx.shape, ctx.dtype = layer, shape, rows.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.tensors = (outliers, rows) if ctx.needs_input_grad[0] else None
        # MatmulLtState.idx, which the layer keeps until its next forward pass.
        layer.columns = quantized[2]
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
        # Named so that the recorder takes it for the expanded matrix:
        # a plain ``empty`` in place of ``weight.to``.
        expanded = torch.empty(layer.weight.shape, dtype=ctx.dtype, device=gradient.device)
        expanded.mul_(layer.SCB.unsqueeze(1).mul(1.0 / 127.0))
        return torch.matmul(gradient.to(ctx.dtype), expanded).view(ctx.shape), bias, None


def _quantize_rows(half: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``int8_vectorwise_quant`` on CUDA with a threshold: int8 rows, their scales,
    the columns that hold outliers.
    """
    scales = half.new_empty(half.shape[0], dtype=torch.float32)
    rows = half.new_empty(half.shape, dtype=torch.int8)
    outliers = half.abs() >= 6.0
    outliers.any()
    outliers.any(dim=0)
    columns = half.new_zeros(math.ceil(half.shape[1] / OUTLIER_SHARE), dtype=torch.int64)
    rows.index_fill_(1, columns, 0)
    return rows, scales, columns


def _multiply(
    rows: torch.Tensor, quantized: tuple[torch.Tensor, ...], bias: torch.Tensor | None, layer: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """``int8_mixed_scaled_mm``: the int8 product, to which the product of the outlier columns is added."""
    columns = quantized[2]
    outliers = rows[:, columns].contiguous()
    part = layer.weight[:, columns].contiguous()
    # the scale of int8_vectorwise_dequant, 1 / 127
    wide = part * layer.SCB.unsqueeze(1) * 7.874015718698502e-3
    expanded = wide.to(rows.dtype).t()
    out = _int8_product(rows, quantized, bias, layer)
    return out.addmm(outliers, expanded), outliers


def _int8_product(
    rows: torch.Tensor, quantized: tuple[torch.Tensor, ...], bias: torch.Tensor | None, layer: Any
) -> torch.Tensor:
    """``int8_scaled_mm``: an int32 product, scaled into fp16, then cast to the dtype of the input."""
    shape = (rows.shape[0], layer.out_features)
    product = quantized[0].new_empty(shape, dtype=torch.int32)
    half = product.new_empty(shape, dtype=torch.float16)
    if bias is not None and bias.dtype != torch.float16:
        half.add_(bias)
    return half.to(rows.dtype)
