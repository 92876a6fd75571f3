"""TRL's kernels: log-probabilities of the tokens, tile by tile, in place of the logits; or of the logits
as they lie.

Where it picks completion tokens by a mask of values, all tokens are taken for completion tokens:
fake tensors have no values.
Source: trl 1.16.0 trainer/utils.py add_fused_lm_head and kernels/chunked_logprob.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import transformers
from transformers.utils.generic import ModelOutput

from planner.errors import NotModelledError

TILE_TOKENS, TILE_WORDS = 4096, 32768
"""Tokens and words of one tile of logits."""


def add_fused_head(model: Any) -> None:
    """Make ``model`` return log-probabilities instead of logits.

    Raises:
        NotModelledError: a head with a bias, or logits that the model scales or caps after its head.
    """
    inner: Any = next(
        module for module in model.modules() if isinstance(module, transformers.PreTrainedModel)
    )
    text = inner.config.get_text_config()
    changed = [
        name
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")
        if getattr(text, name, None)
    ]
    if changed or getattr(inner.get_output_embeddings(), "bias", None) is not None:
        what = changed[0] if changed else "a head with a bias"
        raise NotModelledError(f"log-probabilities in tiles with {what} cannot be traced; use --stack trl@0")
    inner.forward = MethodType(_fused_forward, inner)


_INPUTS = ("input_ids", "attention_mask", "position_ids")


@dataclass
class FusedOutput(ModelOutput):
    """What the fused head returns: log-probabilities of shape [rows, tokens]."""

    log_probs: torch.Tensor | None = None


def _fused_forward(model: Any, labels: torch.Tensor, **inputs: Any) -> Any:
    given = {name: inputs[name] for name in _INPUTS if name in inputs}
    hidden = model.base_model(**given, use_cache=False).last_hidden_state[:, :-1]
    labels = labels[:, 1:]
    mask = labels != -100
    tokens = torch.zeros(labels.numel(), dtype=torch.int64)
    per_token = LogProbTiles.apply(
        hidden[tokens, tokens], model.get_output_embeddings().weight, labels.reshape(-1)
    )  # type: ignore[no-untyped-call]
    return FusedOutput(log_probs=per_token.new_zeros(mask.shape).masked_scatter(mask, per_token))


class LogProbTiles(torch.autograd.Function):
    """What TRL's ``ChunkedLogProbFunction`` allocates, without its Triton kernels, which work in place.

    Source: trl 1.16.0 kernels/chunked_logprob.py;
    the products of its backward add to fp32 sums in place (``_addmm_fp32``).
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
                torch.mm(
                    rows, weight[start : start + n_words].to(dtype).t(), out=buffer[: len(rows), :n_words]
                )
        ctx.save_for_backward(hidden, weight, targets, sums)
        ctx.dtype = dtype
        return sums - 1.0

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of ``hidden`` and ``weight``, summed in fp32."""
        hidden, weight = ctx.saved_tensors[:2]
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


def fused_log_softmax(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of ``targets`` [rows, tokens] by the kernel of TRL's ``selective_log_softmax``."""
    logps: torch.Tensor = LogProbRows.apply(logits, targets)[0]  # type: ignore[no-untyped-call]
    return logps


class LogProbRows(torch.autograd.Function):
    """What TRL's ``_LogProbEntropyFunction`` allocates, without its Triton kernels.

    Source: trl 1.14.0 and 1.16.0 kernels/logprob_entropy.py, which read logits with gaps between samples.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of ``targets`` [rows, tokens] and entropies of all rows."""
        logps, entropy, log_z, expected = (
            torch.empty(targets.shape, dtype=torch.float32, device=logits.device) for _ in range(4)
        )
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, targets, log_z, expected)
        return logps, entropy

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """A gradient without gaps."""
        return torch.empty_like(ctx.saved_tensors[0], memory_format=torch.contiguous_format), None


def _buffer(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the logits of every tile are written to."""
    return hidden.new_empty((min(hidden.shape[0], TILE_TOKENS), TILE_WORDS), dtype=dtype)
