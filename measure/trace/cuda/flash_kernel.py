"""The functions of the package ``flash-attn`` 2, with torch's copy of its kernel behind them.

Source: flash-attn 2.8 flash_attn_interface.py FlashAttnFunc, FlashAttnVarlenFunc.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

_HEAD_MULTIPLE = 8
_TAKES = (torch.float16, torch.bfloat16)
# Of flash_attn_varlen_func in flash-attn 2.8, but for query, key and value.
_PARAMETERS = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "max_seqlen_q",
    "max_seqlen_k",
    "dropout_p",
    "softmax_scale",
    "causal",
    "window_size",
    "softcap",
    "alibi_slopes",
    "deterministic",
    "return_attn_probs",
    "block_table",
)
# What torch calls private here has no public name.
_kernel = torch.ops.aten._flash_attention_forward  # noqa: SLF001


def _attend(
    inputs: tuple[torch.Tensor, ...], bounds: tuple[torch.Tensor | None, int], options: dict[str, Any]
) -> torch.Tensor:
    query, key, value = inputs
    if query.dtype not in _TAKES:
        # flash-attn 2.8 csrc/flash_attn/flash_api.cpp mha_fwd and mha_varlen_fwd.
        raise RuntimeError(f"FlashAttention takes float16 and bfloat16 alone, and its query is {query.dtype}")
    edges, longest = bounds
    width = query.size(-1)
    missing = -width % _HEAD_MULTIPLE
    scale = options.get("softmax_scale") or width**-0.5
    if missing:
        query, key, value = (torch.nn.functional.pad(each, (0, missing)) for each in inputs)
    dropout, causal = options.get("dropout_p", 0.0), options.get("causal", True)
    out: torch.Tensor = _kernel(
        query, key, value, edges, edges, longest, longest, dropout, causal, False, scale=scale
    )[0]
    return out[..., :width] if missing else out


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    **options: Any,
) -> torch.Tensor:
    """The package's function for batches without padding; tensors are (batch, tokens, heads, width)."""
    causal = bool(options.get("causal", False))
    said = {"dropout_p": dropout_p, "softmax_scale": softmax_scale, "causal": causal}
    return _attend((q, k, v), (None, q.size(1)), said)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    **options: Any,
) -> torch.Tensor:
    """The package's function for tokens of many samples without padding; tensors are (tokens,
    heads, width).
    """
    return _attend((q, k, v), (cu_seqlens_q, max_seqlen_q), options)


class Varlen:
    """The package's function with its parameters, from which Transformers sees what it may pass."""

    __signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in _PARAMETERS]
    )

    def __call__(self, *inputs: Any, **options: Any) -> torch.Tensor:
        """Attention of many samples in one row of tokens."""
        return flash_attn_varlen_func(*inputs, **options)
