"""FlashAttention 2 without its package: Transformers' own calls to it,
with torch's copy of the kernel in its place.

Both kernels are the same code: the autograd function keeps query, key, value,
output and one fp32 number per row and head.
Source: flash-attn 2.8 flash_attn_interface.py FlashAttnFunc, FlashAttnVarlenFunc;
csrc/flash_attn/flash_api.cpp mha_bwd and mha_varlen_bwd.
"""

# ruff: noqa: SLF001 - what torch and Transformers call private here has no public name

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from transformers import masking_utils
from transformers import modeling_flash_attention_utils as flash

from measure.trace.cuda.flash_kernel import Varlen, flash_attn_func

# Where Transformers 5.17 to 5.23 keep what they loaded.
_KEPT = (
    "_loaded_implementation",
    "_flash_fn",
    "_flash_varlen_fn",
    "_flash_with_kvcache_fn",
    "_pad_fn",
    "_unpad_fn",
)


def _answer_unpadding(real_tokens: int, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """``_get_unpad_data``: which tokens are real, where samples begin, and the longest of them;
    the batch knows how many.
    """
    indices = torch.zeros(real_tokens, dtype=torch.int64)
    edges = torch.zeros(mask.shape[0] + 1, dtype=torch.int32)
    return indices, edges, mask.shape[-1]


def _answer_mask(padded: bool, real_tokens: int, **options: Any) -> torch.Tensor | None:
    """``flash_attention_mask``: the two-dimensional mask where there is padding, else none."""
    mask: torch.Tensor | None = options.get("attention_mask")
    if mask is None:
        return None
    mask.all()
    return mask[:, -int(options["kv_length"]) :] if padded and real_tokens < mask.numel() else None


def _not_packed(ask: Callable[..., Any], *given: Any, **named: Any) -> bool:
    ask(*given, **named)  # what the question itself allocates is recorded
    return False


@contextmanager
def flash_attention(*, padded: bool, real_tokens: int) -> Iterator[None]:
    """Inside, ``flash_attention_2`` of Transformers runs without the package, on fake tensors too.

    Questions to values are answered from the batch: whether it is padded, how many tokens are real.
    Positions never start anew, because the Trainer's collator passes none.
    """
    functions = (flash_attn_func, Varlen(), None, flash._pad_input, flash._unpad_input)

    def load(*_: object, **__: object) -> Any:
        return functions

    ask = partial(_not_packed, flash._is_packed_sequence)
    masks = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    with ExitStack() as stack:
        # What Transformers loads it keeps in its module;
        # the way from there to a call differs between its versions.
        for name in _KEPT:
            stack.enter_context(mock.patch.object(flash, name, None))
        stack.enter_context(mock.patch.object(flash, "_lazy_imports", load))
        # As a model does that is made with it; Falcon's own code names no implementation when it calls.
        flash.lazy_import_flash_attention("flash_attention_2")
        stack.enter_context(
            mock.patch.object(flash, "_get_unpad_data", partial(_answer_unpadding, real_tokens))
        )
        stack.enter_context(mock.patch.object(flash, "_is_packed_sequence", ask))
        stack.enter_context(
            mock.patch.dict(
                masks._global_mapping, {"flash_attention_2": partial(_answer_mask, padded, real_tokens)}
            )
        )
        yield
