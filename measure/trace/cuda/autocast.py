"""CUDA's autocast lists, put on the CPU's autocast key."""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map

# torch 2.13 ATen/autocast_mode.h.  The 16-bit list (matmul, linear, bmm, ...)
# is the same on both for what models call.
_FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim
nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
dist pdist cdist renorm logsumexp
"""
_FP32_RESULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
_LOW_PRECISION = """
_convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
conv_transpose3d.input prelu addmm matmul mm linalg_vecdot linear addbmm baddbmm bmm
scaled_dot_product_attention
"""
FP32_OPS, FP32_RESULT_OPS, WIDEST_OPS = (tuple(names.split()) for names in (_FP32, _FP32_RESULT, _WIDEST))
# The same on both sides: the CPU's own kernels stay.
LOW_PRECISION_OPS = frozenset(_LOW_PRECISION.split())
_KEY = "AutocastCPU"
_WITHOUT_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


@contextmanager
def cuda_autocast_lists() -> Iterator[None]:
    """Inside, ``torch.autocast("cpu")`` casts what ``torch.autocast("cuda")`` casts."""
    ours = (
        dict.fromkeys(FP32_OPS, _in_fp32)
        | dict.fromkeys(FP32_RESULT_OPS, _with_fp32_result)
        | dict.fromkeys(WIDEST_OPS, _in_widest)
    )
    with torch.library._scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is replaced, which is the point
        for name, make in ours.items():
            library.impl(name, make(_operator(name)), _KEY, allow_override=True)
        for name in _cpu_only(set(ours) | LOW_PRECISION_OPS):
            library.impl(name, torch.library.fallthrough_kernel, _KEY, allow_override=True)
        yield


def _cpu_only(kept: set[str]) -> list[str]:
    """Operators that only the CPU's autocast touches."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = (
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    )
    return [name for name in names if name not in kept and has(f"aten::{name}", _KEY)]


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda leaf: leaf.to(dtype) if _eligible(leaf) else leaf, value)


def _all_cast(args: tuple[Any, ...], dtype: torch.dtype) -> list[Any]:
    """The last one first, as GCC evaluates the arguments of a call, of which torch's wheels are made."""
    return [_cast(each, dtype) for each in reversed(args)][::-1]


def _in_fp32(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_WITHOUT_AUTOCAST):
            return operator(*_all_cast(args, torch.float32), **_cast(kwargs, torch.float32))

    return run


def _with_fp32_result(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_WITHOUT_AUTOCAST):
            position = next(
                (i for i, each in enumerate(operator._schema.arguments) if each.name == "dtype"), len(args)
            )
            given = args[position] if position < len(args) else kwargs.get("dtype")
            if not _eligible(args[0]) or given is not None:
                return operator(*args, **kwargs)
            return operator(*args[:position], **{**kwargs, "dtype": torch.float32})

    return run


def _in_widest(operator: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_WITHOUT_AUTOCAST):
            wide = any(_eligible(each) and each.dtype == torch.float32 for each in args)
            return operator(*_all_cast(args, torch.float32), **kwargs) if wide else operator(*args, **kwargs)

    return run
