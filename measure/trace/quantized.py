"""Stand-ins for bitsandbytes' linear layers: they store, expand and keep what the real ones do on CUDA.

The real layers quantise by kernels that fake tensors cannot run.  PEFT wraps the stand-ins with its real LoRA layers, because
they are subclasses of the real classes.
"""

# ruff: noqa: SLF001 - what torch and Transformers call private here has no public name

from __future__ import annotations

import math
from typing import Any

import torch
import transformers
from torch import nn

from measure.trace.quantized_int8 import int8_stand_in
from planner.domain.recipe import Numerics, Recipe
from planner.errors import NotModelledError

BLOCK_ELEMENTS = 64
NESTED_BLOCKS = 256
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Names under which a stand-in keeps its quantisation constants.
CONSTANTS = frozenset({"absmax", "nested_absmax", "offset", "code", "SCB"})


def quantize_on_meta(model: Any, recipe: Recipe) -> None:
    """Replace the linear layers that Transformers would quantise, by its own choice of modules.

    Raises:
        NotModelledError: a quantisation that is not traced.
    """
    numerics = recipe.numerics
    if numerics.quantization in ("nf4", "fp4"):
        _quantize_4bit(model, numerics)
    elif numerics.quantization == "int8":
        _quantize_int8(model, numerics)
    else:
        raise NotModelledError(
            f"quantization '{numerics.quantization}' cannot be traced: gptqmodel chooses among its kernels when it loads, "
            "and each expands weights in its own way; use --method qlora, or ask the closed form: plan --model ..."
        )
    model.is_quantized = True


def _quantize_4bit(model: Any, numerics: Numerics) -> None:
    make_config: Any = transformers.BitsAndBytesConfig
    config = make_config(
        load_in_4bit=True,
        bnb_4bit_quant_type=numerics.quantization,
        bnb_4bit_use_double_quant=numerics.double_quant,
        bnb_4bit_compute_dtype=_DTYPES[numerics.compute_dtype],
        bnb_4bit_quant_storage=_DTYPES[numerics.quant_storage] if numerics.quant_storage else torch.uint8,
    )
    from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer

    quantizer: Any = Bnb4BitHfQuantizer(config)
    quantizer._process_model_before_weight_loading(model, device_map=None)
    for module in _named(model, "Linear4bit"):
        _stand_in(module, _DTYPES[numerics.load_dtype])
    model.is_loaded_in_4bit = True


def _quantize_int8(model: Any, numerics: Numerics) -> None:
    from transformers.quantizers.quantizer_bnb_8bit import Bnb8BitHfQuantizer

    make_config: Any = transformers.BitsAndBytesConfig
    quantizer: Any = Bnb8BitHfQuantizer(make_config(load_in_8bit=True))
    quantizer._process_model_before_weight_loading(model, device_map=None)
    for module in _named(model, "Linear8bitLt"):
        int8_stand_in(module, _DTYPES[numerics.load_dtype])
    model.is_loaded_in_8bit = True


def is_packed(tensor: torch.Tensor) -> bool:
    """Whether a parameter holds the bytes of a k-bit matrix, whatever its dtype says."""
    return hasattr(tensor, "loading_bytes")


def _named(model: nn.Module, class_name: str) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__ == class_name]


class Params4bit(nn.Parameter):
    """Packed bytes.  PEFT's preparation widens 16-bit parameters, but none of a class of this name (peft 0.21 utils/other.py)."""


def _stand_in(layer: Any, loaded: torch.dtype) -> None:
    """Turn a real ``Linear4bit`` on meta into a stand-in that holds its packed bytes and constants."""
    out_features, in_features = layer.out_features, layer.in_features
    old = layer.weight
    n_elements = out_features * in_features
    packed = n_elements // 2 // old.quant_storage.itemsize
    weight = Params4bit(torch.empty((packed, 1), dtype=old.quant_storage, device="meta"), requires_grad=False)
    # PEFT copies these when it wraps the layer; the last one is what the loader holds while it quantises.
    facts = {
        "compress_statistics": old.compress_statistics,
        "quant_type": old.quant_type,
        "loading_bytes": n_elements * loaded.itemsize,
    }
    for name, value in facts.items():
        setattr(weight, name, value)
    layer.weight = weight
    layer.expanded_dtype = loaded
    n_blocks = math.ceil(n_elements / BLOCK_ELEMENTS)
    layer.nested = old.compress_statistics
    if layer.nested:
        layer.register_buffer("absmax", torch.empty(n_blocks, dtype=torch.uint8, device="meta"))
        layer.register_buffer("nested_absmax", torch.empty(math.ceil(n_blocks / NESTED_BLOCKS), device="meta"))
        layer.register_buffer("offset", torch.empty((), device="meta"))
    else:
        layer.register_buffer("absmax", torch.empty(n_blocks, device="meta"))
    layer.register_buffer("code", torch.empty(16, device="meta"))
    layer.__class__ = _stand_in_class(type(layer))


def _stand_in_class(real: type) -> type:
    return type("Linear4bit", (real,), {"forward": _forward_4bit})


def _forward_4bit(layer: Any, inputs: torch.Tensor) -> torch.Tensor:
    """``Linear4bit.forward`` of bitsandbytes 0.50 (nn/modules.py): cast, multiply, cast back."""
    dtype = inputs.dtype
    bias = layer.bias
    if layer.compute_dtype is not None:
        inputs = inputs.to(layer.compute_dtype)
        bias = None if bias is None else bias.to(layer.compute_dtype)
    out: torch.Tensor = _MatMul4Bit.apply(inputs, bias, layer)  # type: ignore[no-untyped-call]
    return out.to(dtype)


class _MatMul4Bit(torch.autograd.Function):
    """``MatMul4Bit`` of bitsandbytes 0.50 (autograd/_functions.py): nothing is kept, the matrix is expanded in both passes.

    Up to 1536 tokens some cards multiply without expanding in the forward pass (backends/cuda/ops.py gemm_4bit); here it is
    always expanded, which in that case counts one matrix more, of the widest linear layer at most.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, bias: torch.Tensor | None, layer: Any) -> torch.Tensor:
        ctx.layer, ctx.has_bias = layer, bias is not None
        scales = _scales(layer, in_place=False)
        expanded = torch.empty((layer.out_features, layer.in_features), dtype=inputs.dtype, device=inputs.device)
        del scales
        return nn.functional.linear(inputs, expanded, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        (gradient,) = gradients
        bias = gradient.sum(0) if ctx.has_bias and ctx.needs_input_grad[1] else None
        return (torch.matmul(gradient, _expanded(ctx.layer, gradient)) if ctx.needs_input_grad[0] else None), bias, None


def _expanded(layer: Any, gradient: torch.Tensor) -> torch.Tensor:
    """The matrix in the gradient's dtype: ``dequantize_4bit`` returns the one that was quantised, which goes when it is cast."""
    scales = _scales(layer, in_place=True)
    expanded = torch.empty((layer.out_features, layer.in_features), dtype=layer.expanded_dtype, device=gradient.device)
    del scales
    return expanded.to(gradient.dtype)


def _scales(layer: Any, *, in_place: bool) -> torch.Tensor | None:
    """fp32 scales of doubly quantised ones: ``dequantize_4bit`` adds the offset in place, ``gemm_4bit`` makes another copy."""
    if not layer.nested:
        return None
    scales = torch.empty(layer.absmax.shape, dtype=torch.float32, device=layer.absmax.device)
    return scales.add_(layer.offset) if in_place else scales + layer.offset
