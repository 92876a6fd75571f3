"""Kernels of torch that CUDA has and the CPU build does not: which attention runs,
and what kernels take while they run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from measure.dry_run.cuda.native import Native
from measure.trace.cuda.grouped import grouped_product
from measure.trace.cuda.sdpa import KERNEL_WORKSPACES, attention_on_cuda


def install(native: Native) -> Any:
    """Put the kernels in place; they last as long as what is returned."""
    make: Any = torch.library.Library
    library = make("aten", "IMPL")
    for key in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", attention_on_cuda, key)
    library.impl("_grouped_mm", grouped_product, "Meta", allow_override=True)
    for operator, workspace in KERNEL_WORKSPACES.items():
        library.impl(operator, _with_workspace(native, operator, workspace), "CUDA")
    return library


def _with_workspace(native: Native, operator: Any, workspace: Callable[..., list[int]]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        taken = [
            (native.take(size, f"{operator} workspace"), size) for size in workspace(*args, **kwargs) if size
        ]
        out = shapes_only(operator, *args, **kwargs)
        for block, size in reversed(taken):
            native.give_back(block, size)
        return out

    return kernel


def shapes_only(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Outputs of ``operator`` on the card, by its shape function."""
    meta_args, meta_kwargs = tree_map(_to_meta, (args, kwargs))
    return tree_map(_to_card, operator(*meta_args, **meta_kwargs))


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value


def _to_card(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    return value
