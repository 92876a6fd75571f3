"""Matrix products of a layer: each by what its weight is stored in, and with its adapter.

Source: torch 2.13 ``nn/modules/linear.py``; transformers 5.23 ``pytorch_utils.py`` Conv1D; torch 2.13
``aten/src/ATen/autocast_mode.cpp``, which casts the arguments of an operator from the last to the first.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.model import LinearSpec
from planner.domain.recipes.recipe import Quantization
from planner.program.ops.autograd import record
from planner.program.ops.casts import Base, autocast, linear_function, rows_of, weight_copy
from planner.program.ops.collectives import entering, leaving
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor, Unit, replaced
from planner.program.view import LayerView
from planner.program.weights.aqlm import linear_aqlm
from planner.program.weights.awq import linear_awq
from planner.program.weights.fake_quantized import is_rounded, linear_rounded
from planner.program.weights.fine_grained import linear_fine_grained
from planner.program.weights.float8 import in_float8, linear_float8
from planner.program.weights.four_bit import linear_4bit, packed_parameter, product_4bit
from planner.program.weights.fused_adapters import fused_linear, is_fused
from planner.program.weights.gptq import linear_gptq
from planner.program.weights.int8 import linear_int8
from planner.program.weights.lora import dropout
from planner.program.weights.lora_operators import with_adapter
from planner.program.weights.te_casts import linear_te

__all__ = ["autocast", "base_product", "dropout", "linear", "product_4bit", "weight_copy"]


def linear(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """What one matrix of a layer returns for ``x``, its adapter included."""
    # A fused function reads the weights, and calls no module that holds them.
    named = replaced(torch, module=spec.name) if is_fused(view, spec) else torch.inside(spec.name)
    with named:
        return leaving(torch, view, spec, _own_part(torch, view, spec, entering(torch, view, spec, x)))


def _own_part(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """The same on one GPU."""
    if not view.adapted(spec):
        return base_product(torch, view, spec, x)
    if is_fused(view, spec):
        return fused_linear(torch, view, spec, x)
    if view.recipe.sharding.is_zero3:
        x = _handed_on(torch, x)
    return with_adapter(torch, view, spec, x, _base_layer)


def _handed_on(torch: Operators, x: Tensor) -> Tensor:
    """An input that DeepSpeed's hook hands on: gradients of all that reads it are summed before the next
    module's are.

    Source: DeepSpeed 0.19.8 runtime/zero/parameter_offload.py _post_backward_module_hook.
    """
    return record(torch, x.alias(), [x], [], lambda _, gradient: [gradient])


def _base_layer(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """PEFT's wrapper calls the layer that it wraps as a module of its own."""
    with torch.inside("base_layer", torch.module):
        return base_product(torch, view, spec, x)


def base_product(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """The product with the layer's own weight."""
    if is_rounded(view.recipe, spec, adapted=view.adapted(spec)):
        return linear_rounded(torch, view, spec, x)
    if not view.quantized(spec):
        return _unpacked(view, spec)(torch, view, spec, x)
    packed_parameter(torch, view, spec)
    return _PRODUCTS[view.recipe.numerics.quantization](torch, view, spec, x)


def _unpacked(view: LayerView, spec: LinearSpec) -> Base:
    """The product with a weight that is stored as it is."""
    if not in_float8(view.recipe.numerics, spec):
        return _plain
    return linear_float8 if view.narrow is None else linear_te


_PRODUCTS: Mapping[Quantization, Base] = {
    "int8": linear_int8,
    "nf4": linear_4bit,
    "fp4": linear_4bit,
    "gptq-int4": linear_gptq,
    "gptq-int8": linear_gptq,
    "awq-int4": linear_awq,
    "aqlm": linear_aqlm,
    "fp8": linear_fine_grained,
}
"""Packed matrices that are no parameters of bitsandbytes lie in buffers, which no engine gathers."""


def _plain(torch: Operators, view: LayerView, spec: LinearSpec, x: Tensor) -> Tensor:
    """``nn.Linear`` casts bias, weight and input; ``Conv1D`` (``addmm``) casts the bias last."""
    dtype, trained = view.dtypes.base, view.trains_base
    weight = torch.parameter(Unit.ONE, spec.weight_count, dtype, trained=trained)
    bias = torch.parameter(Unit.ONE, spec.bias_count, dtype, trained=trained) if spec.bias else None
    if bias is not None and spec.kind != "conv1d":
        bias = weight_copy(torch, view, bias)
    weight = weight_copy(torch, view, weight)
    x = autocast(torch, view, x)
    if bias is not None and spec.kind == "conv1d":
        bias = weight_copy(torch, view, bias)
    times = torch.mm if spec.kind == "conv1d" else linear_function(torch, view)
    return times(x, weight, spec.out_features * rows_of(spec, x), bias=bias, copies=spec.copies)
