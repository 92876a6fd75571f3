"""Cross-entropy in chunks: logits of one part of the tokens at a time, made again in the backward pass.

The way of torchtune 0.6 (modules/loss/ce_chunked_output_loss.py) and of TRL: the full logits never exist.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

CHUNKS = 8
_IGNORED_LABEL = -100


def chunked_loss(model: Any, inputs: dict[str, torch.Tensor], *, before_head: Any) -> torch.Tensor:
    """Mean loss over the labelled tokens of a causal language model;
    ``before_head`` is called when the logits begin.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    given = {name: tensor for name, tensor in inputs.items() if name != "labels"}
    hidden = base.get_decoder()(**given).last_hidden_state
    before_head(hidden)
    labels = inputs["labels"][:, 1:].reshape(-1)
    rows = hidden[:, :-1].reshape(-1, hidden.shape[-1])
    head = base.get_output_embeddings()
    total = rows.new_zeros((), dtype=torch.float32)
    for part, wanted in zip(rows.chunk(CHUNKS), labels.chunk(CHUNKS), strict=True):
        summed: Any = checkpoint(_part_loss, head, part, wanted, use_reentrant=False)
        total = total + summed
    mean: torch.Tensor = total / (labels != _IGNORED_LABEL).sum().clamp(min=1)
    return mean


def _part_loss(head: Any, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = head(rows).float()
    return torch.nn.functional.cross_entropy(logits, labels, ignore_index=_IGNORED_LABEL, reduction="sum")
