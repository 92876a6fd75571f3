"""FlashAttention 2 without its package: Transformers' own calls to it, with torch's copy of the kernel in its place.

Both kernels are the same code: the autograd function keeps query, key, value, output and one fp32 number per row and head.
Source: flash-attn 2.8 flash_attn_interface.py FlashAttnFunc, FlashAttnVarlenFunc; csrc/flash_attn/flash_api.cpp mha_bwd and
mha_varlen_bwd.
"""

# ruff: noqa: SLF001 - what torch and Transformers call private here has no public name

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from transformers import masking_utils
from transformers import modeling_flash_attention_utils as flash

_HEAD_MULTIPLE = 8
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
# Where Transformers 5.17 to 5.23 keep what they loaded.
_KEPT = ("_loaded_implementation", "_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn", "_pad_fn", "_unpad_fn")
_aten = torch.ops.aten
_kernel = _aten._flash_attention_forward


def _attend(inputs: tuple[torch.Tensor, ...], bounds: tuple[torch.Tensor | None, int], options: dict[str, Any]) -> torch.Tensor:
    query, key, value = inputs
    edges, longest = bounds
    width = query.size(-1)
    missing = -width % _HEAD_MULTIPLE
    scale = options.get("softmax_scale") or width**-0.5
    if missing:
        query, key, value = (torch.nn.functional.pad(each, (0, missing)) for each in inputs)
    dropout, causal = options.get("dropout_p", 0.0), options.get("causal", True)
    out: torch.Tensor = _kernel(query, key, value, edges, edges, longest, longest, dropout, causal, False, scale=scale)[0]
    return out[..., :width] if missing else out


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, **options: Any
) -> torch.Tensor:
    """The package's function for batches without padding; tensors are (batch, tokens, heads, width)."""
    causal = bool(options.get("causal", False))
    said = {"dropout_p": dropout_p, "softmax_scale": softmax_scale, "causal": causal}
    return _attend((q, k, v), (None, q.size(1)), said)


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, max_seqlen_q: int, **options: Any
) -> torch.Tensor:
    """The package's function for tokens of many samples without padding; tensors are (tokens, heads, width)."""
    return _attend((q, k, v), (cu_seqlens_q, max_seqlen_q), options)


def _answer_unpadding(real_tokens: int, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """``_get_unpad_data``: which tokens are real, where samples begin, and the longest of them; the batch knows how many."""
    indices = torch.zeros(real_tokens, dtype=torch.int64)
    edges = torch.zeros(mask.shape[0] + 1, dtype=torch.int32)
    return indices, edges, mask.shape[-1]


def _answer_mask(padded: bool, **options: Any) -> torch.Tensor | None:
    """``flash_attention_mask``: the two-dimensional mask where there is padding, else none."""
    mask: torch.Tensor | None = options.get("attention_mask")
    if mask is None:
        return None
    mask.all()
    return mask[:, -int(options["kv_length"]) :] if padded else None


def _not_packed(*_: object, **__: object) -> bool:
    return False


class _Varlen:
    """The package's function with its parameters, from which Transformers sees what it may pass."""

    __signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in _PARAMETERS])

    def __call__(self, *inputs: Any, **options: Any) -> torch.Tensor:
        """Attention of many samples in one row of tokens."""
        return flash_attn_varlen_func(*inputs, **options)


@contextmanager
def flash_attention(*, padded: bool, real_tokens: int) -> Iterator[None]:
    """Inside, ``flash_attention_2`` of Transformers runs without the package, on fake tensors too.

    Questions to values are answered from the batch: whether it is padded, how many tokens are real.  Positions never start anew,
    because the Trainer's collator passes none.
    """
    functions = (flash_attn_func, _Varlen(), None, flash._pad_input, flash._unpad_input)

    def load(*_: object, **__: object) -> Any:
        return functions

    masks = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    with ExitStack() as stack:
        # What Transformers loads it keeps in its module; the way from there to a call differs between its versions.
        for name in _KEPT:
            stack.enter_context(mock.patch.object(flash, name, None))
        stack.enter_context(mock.patch.object(flash, "_lazy_imports", load))
        stack.enter_context(mock.patch.object(flash, "_get_unpad_data", partial(_answer_unpadding, real_tokens)))
        stack.enter_context(mock.patch.object(flash, "_is_packed_sequence", _not_packed))
        stack.enter_context(mock.patch.dict(masks._global_mapping, {"flash_attention_2": partial(_answer_mask, padded)}))
        yield
