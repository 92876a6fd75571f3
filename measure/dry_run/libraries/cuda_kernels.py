"""Kernels of torch that CUDA has and the CPU build does not: which attention runs,
and what kernels take while they run.
"""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from measure.dry_run.cuda.card import CardFacts
from measure.dry_run.cuda.cuda_bindings import always
from measure.dry_run.cuda.native import Native
from measure.trace.cuda.sdpa import (
    KERNEL_WORKSPACES,
    attention_on,
    efficient_takes,
    flash_takes,
    kernel_number,
)
from measure.trace.cuda.shapes import give_shapes
from planner.intake.supported import FIRST_WITH_FLASH


def install(native: Native, facts: CardFacts) -> Any:
    """Put the kernels of a card in place; they last as long as what is returned."""
    make: Any = torch.library.Library
    library = make("aten", "IMPL")
    has_flash = facts.compute_capability >= FIRST_WITH_FLASH
    attention = attention_on(has_flash=has_flash)
    for key in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", attention, key)
    # Programs ask beforehand which kernel it would be.
    library.impl("_fused_sdp_choice", partial(kernel_number, has_flash), "CUDA")
    _answer_for_kernels(has_flash)
    give_shapes(library)
    for overload in ("", ".Tensor"):
        library.impl(f"_use_cudnn_ctc_loss{overload}", _of_cudnn, "CUDA")
        # Of AMD's cards.
        library.impl(f"_use_miopen_ctc_loss{overload}", always(False), "CUDA")
    library.impl("_ctc_loss", _ctc_loss, "CUDA")
    library.impl("_ctc_loss_backward", _ctc_loss_backward, "CUDA")
    for operator, workspace in KERNEL_WORKSPACES.items():
        library.impl(operator, _with_workspace(native, operator, workspace), "CUDA")
    return library


def _answer_for_kernels(has_flash: bool) -> None:
    """``can_use_flash_attention`` and its like, which a CPU build always denies."""
    # torch.backends.cuda asks there.
    _c: Any = torch._C

    def takes_flash(params: Any, debug: bool = False) -> bool:
        del debug
        inputs = (params.query, params.key, params.value)
        return flash_takes(inputs, params.attn_mask, grouped=params.enable_gqa, has_flash=has_flash)

    def takes_efficient(params: Any, debug: bool = False) -> bool:
        del debug
        return efficient_takes((params.query, params.key, params.value), has_flash=has_flash)

    _c._can_use_flash_attention = takes_flash
    _c._can_use_mem_efficient_attention = takes_efficient


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


def _of_cudnn(_: torch.Tensor, targets: torch.Tensor, *__: Any) -> bool:
    """Whether cuDNN would compute the loss: it takes 32-bit targets in one row (LossCTC.cpp)."""
    if targets.dim() == 1 and targets.dtype == torch.int32:
        raise NotImplementedError("a dry run has no ctc_loss of cuDNN; torch's own takes targets of 64 bits")
    return False


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    _: list[int],
    lengths: list[int],
    *__: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What torch's own kernels allocate (aten/src/ATen/native/cuda/LossCTC.cu)."""
    longest = targets.shape[1] if targets.dim() > 1 else max(lengths)
    n_frames, n_rows = log_probs.shape[:2]
    return log_probs.new_empty(n_rows), log_probs.new_empty(n_rows, n_frames, 2 * longest + 1)


def _ctc_loss_backward(_: torch.Tensor, log_probs: torch.Tensor, *given: Any) -> torch.Tensor:
    # The last tensor holds sums of the forward pass, of which the backward pass makes as many.
    _sums = torch.empty_like(given[4])
    return torch.empty_like(log_probs)


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
