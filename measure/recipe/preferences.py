"""Training from preferences as the trainers of TRL and LLaMA-Factory run it: several passes, and losses over log-probabilities.

Where a trainer picks completion tokens by a mask of values, all tokens are taken for completion tokens: fake tensors have no
values, and that is the most.
Source: trl 0.15.2, 0.24.0 and 1.9.0 trainer/dpo_trainer.py concatenated_forward, _compute_loss and trainer/utils.py
selective_log_softmax, entropy_from_logits; trl 1.16.0 trainer/utils.py add_fused_lm_head and kernels/chunked_logprob.py;
hiyouga/LLaMA-Factory (commit ff6d4d12) train/dpo/trainer.py and train/trainer_utils.py get_batch_logps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import transformers
from torch import nn

from planner.domain.recipe import Recipe
from planner.domain.stack import PairLogps
from planner.errors import NotModelledError

TILE_TOKENS, TILE_WORDS = 4096, 32768
"""Tokens and words of one tile of logits.  Source: trl 1.16.0 kernels/chunked_logprob.py, trainer/utils.py."""
_ENTROPY_ROWS = 128

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Passes:
    """The models of a job and how it takes log-probabilities.

    ``reference``: a second model; without one the adapters are switched off.  ``enter`` is told when passes begin.
    """

    model: Any
    reference: Any
    recipe: Recipe
    kernel: PairLogps
    enter: Callable[[str], None]

    @contextmanager
    def as_before(self) -> Iterator[Any]:
        """The model as it was before training, without gradients."""
        self.enter("reference")
        with torch.no_grad():
            if self.reference is not None:
                yield self.reference
            else:
                with self.model.disable_adapter():
                    yield self.model
        self.enter("metrics")


def disable_dropout(model: nn.Module) -> None:
    """Every dropout is set to zero, as ``disable_dropout_in_model`` of TRL does, which is on by default."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def preference_loss(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """The loss of one micro-batch: its rows are the chosen sequences, then the rejected ones."""
    return _LOSSES[passes.kernel](passes, inputs)


def _tiles(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """TRL from 1.15 on: no logits at all."""
    per_token = passes.model(**inputs).log_probs
    chosen, rejected = per_token.sum(dim=1).chunk(2, dim=0)
    with passes.as_before() as reference:
        before = reference(**inputs).log_probs
    return _sigmoid(chosen, rejected, *before.sum(dim=1).chunk(2, dim=0))


def _shifted_rows(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """TRL 0.29 to 1.14: one function holds the logits of both passes, and reads those of the policy for its metrics."""
    outputs = passes.model(**_without_labels(inputs), use_cache=False)
    targets = inputs["input_ids"][..., 1:]
    logits = outputs.logits[..., :-1, :]
    chosen, rejected = selective_log_softmax(logits, targets).sum(dim=1).chunk(2, dim=0)
    with passes.as_before() as reference:
        ref_outputs = reference(**_without_labels(inputs), use_cache=False)
    ref_logits = ref_outputs.logits[..., :-1, :]
    loss = _sigmoid(chosen, rejected, *selective_log_softmax(ref_logits, targets).sum(dim=1).chunk(2, dim=0))
    _entropy(logits.detach())
    for half in logits.detach().chunk(2, dim=0):
        _completions(half).mean(-1).sum()
    return loss


def _rows(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """TRL 0.15 to 0.28: a function for each pass, which lets its logits go."""
    hidden = passes.kernel == "rows_and_hidden"
    policy = _pass_by_rows(passes.model, inputs, hidden=hidden)
    with passes.as_before() as reference:
        before = _pass_by_rows(reference, inputs, hidden=hidden)
    return _sigmoid(policy[0], policy[1], before[0], before[1])


def _pass_by_rows(model: Any, inputs: Inputs, *, hidden: bool) -> tuple[torch.Tensor, ...]:
    more = {"output_hidden_states": True} if hidden else {}
    outputs = model(**_without_labels(inputs), use_cache=False, **more)
    logits = outputs.logits
    per_token = selective_log_softmax(logits, torch.roll(inputs["input_ids"], shifts=-1, dims=1))
    chosen, rejected = torch.roll(per_token, shifts=1, dims=1).sum(-1).chunk(2, dim=0)
    means = [_completions(half).mean() for half in logits.chunk(2, dim=0)]
    return chosen, rejected, *means


def _whole(passes: Passes, inputs: Inputs) -> torch.Tensor:
    """LLaMA-Factory, and TRL up to 0.14: the logits of the policy are held until the loss is there."""
    logits, policy = _pass_of_all(passes.model, inputs)
    before: tuple[Any, ...] = (None, None)
    with passes.as_before() as reference:
        before = _reference_of_all(reference, inputs)
    loss = _sigmoid(*policy.chunk(2, dim=0), *before)
    for half in logits.chunk(2, dim=0):
        half.mean()
    return loss


def _pass_of_all(model: Any, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(**_without_labels(inputs), use_cache=False).logits.to(torch.float32)
    targets = inputs["input_ids"][:, 1:].clone()
    per_token = torch.gather(logits[:, :-1, :].log_softmax(-1), dim=2, index=targets.unsqueeze(2)).squeeze(2)
    return logits, per_token.sum(-1)


def _reference_of_all(model: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    _, logps = _pass_of_all(model, inputs)
    return logps.chunk(2, dim=0)


def _sigmoid(
    chosen: torch.Tensor, rejected: torch.Tensor, ref_chosen: torch.Tensor, ref_rejected: torch.Tensor
) -> torch.Tensor:
    """The loss of DPO, whose tensors have one number for each pair."""
    margins = (chosen - rejected) - (ref_chosen - ref_rejected)
    return -nn.functional.logsigmoid(0.1 * margins).mean()


def selective_log_softmax(logits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of ``index`` [rows, tokens] under ``logits`` [rows, tokens, words], row by row.

    Source: trl 0.15.2 and 1.9.0 trainer/utils.py.
    """
    if logits.dtype == torch.float32:
        selected = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
        sums = torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
        return selected - sums
    per_token = []
    for row, targets in zip(logits, index, strict=True):
        logps = nn.functional.log_softmax(row, dim=-1)
        per_token.append(logps.gather(dim=-1, index=targets.unsqueeze(-1)).squeeze(-1))
    return torch.stack(per_token)


def _entropy(logits: torch.Tensor) -> None:
    """``entropy_from_logits``, whose reshape copies logits that were cut by one position."""
    for piece in logits.reshape(-1, logits.shape[-1]).split(_ENTROPY_ROWS, dim=0):
        logps = nn.functional.log_softmax(piece, dim=-1)
        -(torch.exp(logps) * logps).sum(-1)


def _completions(logits: torch.Tensor) -> torch.Tensor:
    """``logits[mask]``: a copy of the rows of completion tokens."""
    n_rows, n_tokens = logits.shape[:2]
    picked = torch.zeros(n_rows * n_tokens, dtype=torch.int64)
    return logits[picked, picked]


def _without_labels(inputs: Inputs) -> Inputs:
    return {name: each for name, each in inputs.items() if name != "labels"}


_LOSSES: dict[str, Callable[[Passes, Inputs], torch.Tensor]] = {
    "tiles": _tiles,
    "shifted_rows": _shifted_rows,
    "rows": _rows,
    "rows_and_hidden": _rows,
    "whole": _whole,
}


def add_fused_head(model: Any) -> None:
    """Make ``model`` return log-probabilities instead of logits.

    Raises:
        NotModelledError: a head with a bias, or logits that the model scales or caps after its head.
    """
    inner: Any = next(module for module in model.modules() if isinstance(module, transformers.PreTrainedModel))
    text = inner.config.get_text_config()
    changed = [name for name in ("final_logit_softcapping", "logit_scale", "logits_scaling") if getattr(text, name, None)]
    if changed or getattr(inner.get_output_embeddings(), "bias", None) is not None:
        what = changed[0] if changed else "a head with a bias"
        raise NotModelledError(f"log-probabilities in tiles with {what} cannot be traced; use --stack trl@0")
    inner.forward = MethodType(_fused_forward, inner)


@dataclass
class FusedOutput(transformers.utils.ModelOutput):  # type: ignore[misc]
    """What the fused head returns: log-probabilities of shape [rows, tokens]."""

    log_probs: torch.Tensor | None = None


def _fused_forward(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor, **_: Any) -> Any:
    hidden = model.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state[:, :-1]
    labels = labels[:, 1:]
    mask = labels != -100
    tokens = torch.zeros(labels.numel(), dtype=torch.int64)
    per_token = LogProbTiles.apply(hidden[tokens, tokens], model.get_output_embeddings().weight, labels.reshape(-1))  # type: ignore[no-untyped-call]
    return FusedOutput(log_probs=per_token.new_zeros(mask.shape).masked_scatter(mask, per_token))


class LogProbTiles(torch.autograd.Function):
    """What TRL's ``ChunkedLogProbFunction`` allocates, without its Triton kernels, which work in place.

    Source: trl 1.16.0 kernels/chunked_logprob.py; the products of its backward add to fp32 sums in place (``_addmm_fp32``).
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of ``targets`` [tokens]."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
        sums = torch.zeros(hidden.shape[0], dtype=torch.float32)
        buffer = _buffer(hidden, dtype)
        for first in range(0, hidden.shape[0], TILE_TOKENS):
            rows = hidden[first : first + TILE_TOKENS].to(dtype)
            for start in range(0, weight.shape[0], TILE_WORDS):
                n_words = min(TILE_WORDS, weight.shape[0] - start)
                # The cast words of one tile go before those of the next one come.
                torch.mm(rows, weight[start : start + n_words].to(dtype).t(), out=buffer[: len(rows), :n_words])
        ctx.save_for_backward(hidden, weight, targets, sums)
        ctx.dtype = dtype
        return sums - 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of ``hidden`` and ``weight``, summed in fp32."""
        hidden, weight, _, _ = ctx.saved_tensors
        of_hidden = torch.zeros(hidden.shape, dtype=torch.float32) if ctx.needs_input_grad[0] else None
        of_weight = torch.zeros(weight.shape, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        buffer = _buffer(hidden, ctx.dtype)
        for first in range(0, hidden.shape[0], TILE_TOKENS):
            rows = hidden[first : first + TILE_TOKENS].to(ctx.dtype)
            for start in range(0, weight.shape[0], TILE_WORDS):
                words = weight[start : start + TILE_WORDS].to(ctx.dtype)
                torch.mm(rows, words.t(), out=buffer[: len(rows), : len(words)])
        return (
            None if of_hidden is None else of_hidden.to(hidden.dtype),
            None if of_weight is None else of_weight.to(weight.dtype),
            None,
        )


def _buffer(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the logits of every tile are written to."""
    return hidden.new_empty((min(hidden.shape[0], TILE_TOKENS), TILE_WORDS), dtype=dtype)
