"""Shape functions that torch has otherwise than its kernels are: one list for the trace and for programs.

Not in the list is the layer norm, which differs between a CPU and CUDA.
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._decomp import meta_table
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode

from measure.trace.cuda.sdpa import efficient_gradients

_LAYER_NORM = torch.ops.aten.native_layer_norm.default
# CUDA lays rows out in multiples of so many bytes (ATen/native/GroupedMMUtils.h
# create_grouped_gemm_output_tensor).
_ROW_BYTES = 16


def grouped_product(
    first: torch.Tensor,
    second: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Shape and layout of ``aten::_grouped_mm``: rows by matrices, or, of two plain matrices,
    one product for each group.
    """
    del bias  # the operator takes none yet
    dtype = out_dtype or first.dtype
    width = second.size(-1)
    padded = -(-width * dtype.itemsize // _ROW_BYTES) * _ROW_BYTES // dtype.itemsize
    if first.dim() == second.dim():
        groups = first.size(0) if offs is None or first.dim() == 3 else offs.size(0)
        rows = first.size(-2)
        return first.new_empty_strided((groups, rows, width), (rows * padded, padded, 1), dtype=dtype)
    return first.new_empty_strided((first.size(-2), width), (padded, 1), dtype=dtype)


def softplus_gradient(gradient: torch.Tensor, given: torch.Tensor, *_: float) -> torch.Tensor:
    """Shape and layout of ``aten::softplus_backward``: what an elementwise kernel makes of both inputs.

    torch 2.13 _decomp/decompositions.py softplus_backward ends in ``where``, whose condition is laid out as
    ``given``; the kernel (ATen/native/cuda/ActivationSoftplusKernel.cu) looks at ``gradient`` first.
    """
    return torch.mul(gradient, given)


SHAPES: dict[str, Callable[..., Any]] = {
    "_grouped_mm": grouped_product,
    "softplus_backward": softplus_gradient,
    "_efficient_attention_backward": efficient_gradients,
}


def give_shapes(library: Any) -> None:
    """Put them in place for as long as ``library`` lasts."""
    for name, shape in SHAPES.items():
        library.impl(name, shape, "Meta", allow_override=True)


@contextmanager
def shapes_of_kernels() -> Iterator[None]:
    """Inside, fake tensors have these shapes.

    They prefer a decomposition to a shape function that is not in torch's table, and remember what either
    said (torch 2.13 _subclasses/fake_tensor.py FakeTensorMode._dispatch_impl).
    """
    table = {getattr(torch.ops.aten, name).default: shape for name, shape in SHAPES.items()}
    with (
        _forgetting(),
        torch.library._scoped_library("aten", "IMPL") as library,
        mock.patch.dict(meta_table, table),
    ):
        give_shapes(library)
        yield


@contextmanager
def layer_norm_on_cuda() -> Iterator[None]:
    """Inside, mean and deviation of fake rows in 16 bits are kept in fp32.

    Source: torch 2.13 ATen/native/cuda/layer_norm_kernel.cu layer_norm_cuda (``acc_type``);
    _refs/__init__.py native_layer_norm gives those of a CPU the dtype of the rows.
    """
    of_cpu = op_implementations_dict[_LAYER_NORM]

    def of_card(*given: Any, **named: Any) -> tuple[torch.Tensor, ...]:
        out, *statistics = of_cpu(*given, **named)
        return out, *(each.float() for each in statistics)

    with _forgetting(), mock.patch.dict(op_implementations_dict, {_LAYER_NORM: of_card}):
        yield


@contextmanager
def _forgetting() -> Iterator[None]:
    FakeTensorMode.cache_clear()
    yield
    FakeTensorMode.cache_clear()
