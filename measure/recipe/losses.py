"""Losses that never hold all logits: head and loss in one, piece by piece.

The model's own forward stays: its head hands the hidden states on, and its loss function, which gets them in
the place of the logits, runs head and loss.  No logits are returned, as with Liger and TRL.
"""

from __future__ import annotations

import math
from functools import wraps
from types import MethodType
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint

from planner.domain.recipes.recipe import Recipe
from planner.errors import NotModelledError

CHUNKS = 8
"""Pieces of a chunked loss.  Source: torchtitan 0.3.0 components/loss.py, torchtune 0.6 modules/loss."""
_IGNORED = -100


def install_loss(model: Any, recipe: Recipe) -> None:
    """Make ``model`` compute the recipe's loss.

    Raises:
        NotModelledError: a head with a bias, or logits that the model scales or caps after its head.
    """
    if recipe.loss == "hf":
        return
    inner: Any = next(
        module for module in model.modules() if isinstance(module, transformers.PreTrainedModel)
    )
    head: Any = inner.get_output_embeddings()
    text = inner.config.get_text_config()
    changed = [
        name
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")
        if getattr(text, name, None)
    ]
    if changed or getattr(head, "bias", None) is not None:
        what = changed[0] if changed else "a head with a bias"
        raise NotModelledError(f"loss '{recipe.loss}' with {what} cannot be traced; use --loss hf")
    compute = _liger if recipe.loss == "liger" else _chunked

    def loss_function(
        logits: torch.Tensor, labels: torch.Tensor, _vocab: int = 0, **options: Any
    ) -> torch.Tensor:
        rows = logits.reshape(-1, logits.shape[-1])
        targets = nn.functional.pad(labels, (0, 1), value=_IGNORED)[..., 1:].reshape(-1)
        count = options.get("num_items_in_batch")
        total = compute(rows, head.weight, targets)
        return total if count is None else total / count

    head.forward = MethodType(_hand_on, head)
    inner.loss_function = loss_function
    inner.forward = MethodType(_without_logits(inner.forward.__func__), inner)


def _hand_on(_head: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    return hidden


def _without_logits(forward: Any) -> Any:
    # A Trainer hands a model the columns that its forward names.
    @wraps(forward)
    def run(model: Any, *args: Any, **kwargs: Any) -> Any:
        out = forward(model, *args, **kwargs)
        out["logits"] = None
        return out

    return run


def _chunked(rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Head and loss of one piece after another, each computed again in backward;
    so only one piece's logits are alive.
    """
    size = math.ceil(rows.shape[0] / CHUNKS)
    total = rows.new_zeros((), dtype=torch.float32)
    for start in range(0, rows.shape[0], size):
        inputs = rows[start : start + size], weight, targets[start : start + size]
        total = total + checkpoint(_piece, *inputs, use_reentrant=False)
    return total


def _piece(rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = nn.functional.linear(rows, weight)
    return nn.functional.cross_entropy(logits.float(), targets, ignore_index=_IGNORED, reduction="sum")


def _liger(rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = FusedLinearCrossEntropy.apply(rows, weight, targets)  # type: ignore[no-untyped-call]
    return out


def liger_chunk_rows(rows: int, vocabulary: int, hidden: int) -> int:
    """Rows of one piece: the next power of two of rows / ceil(vocabulary / hidden), at most all."""
    wanted = math.ceil(rows / math.ceil(vocabulary / hidden))
    return min(1 << (wanted - 1).bit_length(), rows)


class FusedLinearCrossEntropy(torch.autograd.Function):
    """What Liger's function of this name allocates, without its Triton kernels, which work in place.

    The gradients are made in the forward pass, piece by piece, and handed out in the backward pass.
    Source: Liger-Kernel (commit 00eba634 of 2026) ops/fused_linear_cross_entropy.py, for a mean or sum over
    tokens, no bias and no ``accum_dtype``, on compute capability 8.0 and later.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Losses and gradients of all pieces."""
        size = liger_chunk_rows(rows.shape[0], *weight.shape)
        by_rows = torch.zeros_like(rows)
        by_weight = torch.zeros_like(weight) if weight.requires_grad and rows.requires_grad else None
        losses = torch.zeros(rows.shape[0], dtype=torch.float32, device=rows.device)
        (targets != _IGNORED).sum()
        # One buffer serves all pieces, unless autocast has to cast the operands.
        direct, device = rows.dtype == weight.dtype, rows.device.type
        if torch.is_autocast_enabled(device):
            direct = direct and torch.get_autocast_dtype(device) == rows.dtype
        buffer = rows.new_empty((size, weight.shape[0])) if direct else None
        for start in range(0, rows.shape[0], size):
            piece = rows[start : start + size]
            logits = (
                torch.mm(piece, weight.t(), out=buffer[: len(piece)])
                if buffer is not None
                else piece @ weight.t()
            )
            if buffer is not None:
                torch.mm(logits, weight, out=by_rows[start : start + size])
            else:
                by_rows[start : start + size] = logits @ weight
            if by_weight is not None:
                _add_product(by_weight, logits, piece)
            del logits
        del buffer
        ctx.save_for_backward(by_rows, by_weight)
        return torch.sum(losses)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """The gradients that the forward pass made, scaled in place."""
        by_rows, by_weight = ctx.saved_tensors
        by_rows.mul_(gradients[0])
        if by_weight is not None:
            by_weight.mul_(gradients[0])
        return by_rows, by_weight, None


def _add_product(total: torch.Tensor, logits: torch.Tensor, piece: torch.Tensor) -> None:
    """Add a piece to the head's gradient:
    in place where the accumulator is fp32 or of the logits' 16-bit dtype.
    """
    if logits.dtype in (torch.float16, torch.bfloat16) and total.dtype in (torch.float32, logits.dtype):
        operand = piece.to(logits.dtype)
        total.add_(operand[:1].sum())
    else:
        total += torch.mm(logits.t(), piece).float()
