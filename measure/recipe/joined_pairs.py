"""Pairs whose chosen and rejected sequence are one row, as LLaMA-Factory's v1 trains on them.

Source: hiyouga/LLaMA-Factory ff6d4d12e src/llamafactory/v1/trainers/dpo_trainer.py compute_loss,
_compute_ref_logps, _extract_chosen_rejected_logps; core/rendering/rendering.py process_samples.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

Inputs = dict[str, torch.Tensor]


def joined_loss(
    model: Any, inputs: Inputs, as_before: Callable[[], AbstractContextManager[Any]] | None
) -> torch.Tensor:
    """The loss of one micro-batch, whose first half of rows is chosen and the second rejected.

    ``as_before``: enters the model as it was; ``None`` for losses without a reference.
    """
    rows = {name: torch.cat(value.chunk(2), dim=1) for name, value in inputs.items() if name != "labels"}
    output = model(**rows, use_cache=False)
    logits = output.logits.float()
    shifted = logits[..., :-1, :].contiguous()
    logps = _token_logps(logits, rows["input_ids"])
    shifted.mean(dim=-1).sum()
    if as_before is None:
        return -_margin(logps).mean()
    with as_before() as reference:
        ref_logits = reference(**rows, use_cache=False).logits.float()
        ref_logps = _token_logps(ref_logits, rows["input_ids"])
        del ref_logits
    return -torch.nn.functional.logsigmoid(_margin(logps) - _margin(ref_logps)).mean()


def _token_logps(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    shifted = logits[..., :-1, :].contiguous()
    flat = shifted.view(-1, shifted.shape[-1])
    losses = torch.nn.functional.cross_entropy(flat, targets[..., 1:].reshape(-1), reduction="none")
    return -losses.view(targets.shape[0], -1)


def _margin(logps: torch.Tensor) -> torch.Tensor:
    """Chosen less rejected: the halves of each row."""
    middle = logps.shape[1] // 2
    return logps[:, :middle].sum(-1) - logps[:, middle:].sum(-1)
