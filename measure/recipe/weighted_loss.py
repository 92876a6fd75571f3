"""A loss that the trainer takes from the logits, with a weight for each token."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from planner.domain.stack import LossWeights


def weighted_loss(model: Any, inputs: dict[str, torch.Tensor], weights: LossWeights) -> torch.Tensor:
    """The loss of each token times its probability, or times the entropy of its largest logits;
    every token is trained.

    Source: llamafactory 0.9.5 train/trainer_utils.py dft_loss_func, eaft_loss_func.
    """
    given = {name: each for name, each in inputs.items() if name != "labels"}
    outputs = model(**given, use_cache=False)
    logits = outputs.logits.float()
    logits = logits.view(-1, logits.shape[-1])
    losses = nn.functional.cross_entropy(logits, inputs["labels"].view(-1), reduction="none")
    with torch.no_grad():
        if weights == "entropy":
            copied = logits[torch.zeros(len(logits), dtype=torch.int64)].detach()
            largest = torch.topk(copied, k=20, dim=-1)[0]
            logps = largest - torch.logsumexp(largest, dim=-1, keepdim=True)
            factors = -(torch.exp(logps) * logps).sum(dim=-1)
            del copied, largest, logps
        else:
            factors = torch.exp(-losses)
    return (losses * factors).sum()
