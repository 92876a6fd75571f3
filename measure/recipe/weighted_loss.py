"""A loss that the trainer takes from the logits, with a weight for each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from planner.domain.stack_values import LossWeights


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


def guessed_loss(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of tokens that are guessed from those before and behind: all of them.

    Source: axolotl 0.19.0 integrations/diffusion/trainer.py _compute_diffusion_loss.
    """
    tokens = inputs["input_ids"]
    n_rows, length = tokens.shape
    sees_all = torch.ones(n_rows, 1, length, length, dtype=torch.bool, device=tokens.device)
    outputs = model(input_ids=tokens, attention_mask=sees_all, use_cache=False)
    logits = torch.cat([outputs.logits[:, :1], outputs.logits[:, :-1]], dim=1)
    positions = torch.arange(n_rows * length, device=tokens.device)
    rows = positions // length, positions % length
    guessed = logits[rows]
    return nn.functional.cross_entropy(guessed.float(), tokens[rows], reduction="none").mean()


def compared_loss(
    model: Any, reference: Any, inputs: dict[str, torch.Tensor], then: Callable[[], None]
) -> torch.Tensor:
    """The loss of each token times its probability, and how far its logits are from those of ``reference``,
    which runs first and keeps its keys and values.

    ``then`` is told when the model runs.  The model takes its own loss as well, which nobody uses.
    Source: llamafactory 0.9.5 train/sft/trainer.py compute_loss; train/trainer_utils.py asft_loss_func,
    _kl_divergence.
    """
    with torch.no_grad():
        before = reference(inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=True)
    then()
    outputs = model(**inputs)
    wide = outputs.logits.float()
    logits, given = (each[..., :-1, :].contiguous() for each in (wide, before.logits))
    logits, given = (each.view(-1, each.shape[-1]) for each in (logits, given))
    targets = inputs["labels"][..., 1:].reshape(-1)
    losses = nn.functional.cross_entropy(logits, targets, reduction="none")
    with torch.no_grad():
        factors = torch.exp(-losses)
    logps = nn.functional.log_softmax(logits, dim=-1)
    apart = nn.functional.kl_div(logps, nn.functional.softmax(given, dim=-1), reduction="none").sum(dim=-1)
    return (losses * factors).mean() + apart.mean()
