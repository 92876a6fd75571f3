"""FlexAttention, which programs compile: what its kernels allocate, and none of what they compute.

Source: torch 2.13 _inductor/kernel/flex/flex_attention.py: the forward has the output and the log-sum-exp
in fp32, the backward three gradients and one number for each row of the output in fp32.  A compiled
``create_block_mask`` never has the whole mask, only lists of its blocks.
"""

# ruff: noqa: N803 - names of arguments are torch's own

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from measure.dry_run.guesses import Guesses

_MODULE = "torch.nn.attention.flex_attention"
_BLOCK = 128


def compiled(function: Any, guesses: Guesses) -> Callable[..., Any] | None:
    """What stands in for ``torch.compile(function)``; ``None`` for all that is not of FlexAttention."""
    if getattr(function, "__module__", "") != _MODULE:
        return None
    found: Any = {"flex_attention": _attention, "create_block_mask": _block_mask}.get(function.__name__)
    if found is None:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        guesses.assume("torch.compile", "the memory of its kernels", f"torch's {function.__name__}")
        return found(*args, **kwargs)

    return run


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, asks_sums: bool
    ) -> Any:
        # What is compiled returns no sums that nobody asked for, so these have no gradient.
        ctx.set_materialize_grads(asks_sums)
        out = query.new_empty(*query.shape[:-1], value.size(-1))
        rows = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, rows)
        return out, rows

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        query, key, value, _out, rows = ctx.saved_tensors
        _products = torch.empty_like(rows)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **options: Any) -> Any:
    apply: Any = _Attention.apply
    aux = options.get("return_aux")
    asks_sums = bool(aux.lse if aux is not None else options.get("return_lse"))
    out, rows = apply(query, key, value, asks_sums)
    if aux is not None:
        return out, sys.modules[_MODULE].AuxOutput(lse=rows if asks_sums else None)
    return (out, rows) if asks_sums else out


def _block_mask(
    mask_mod: Any,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    *args: Any,
    **options: Any,
) -> Any:
    given = {**dict(zip(("device", "BLOCK_SIZE"), args, strict=False)), **options}
    size = given.get("BLOCK_SIZE", _BLOCK)
    of_query, of_key = (size, size) if isinstance(size, int) else size
    n_rows, n_columns = -(-Q_LEN // of_query), -(-KV_LEN // of_key)
    shape, device = (B or 1, H or 1, n_rows), given.get("device") or "cuda"
    # Each row may look at all blocks of keys.
    counts = torch.full(shape, n_columns, dtype=torch.int32, device=device)
    indices = torch.zeros((*shape, n_columns), dtype=torch.int32, device=device)
    whole = (
        (torch.zeros_like(counts), torch.zeros_like(indices))
        if given.get("separate_full_blocks", True)
        else ()
    )
    return sys.modules[_MODULE].BlockMask.from_kv_blocks(
        counts, indices, *whole, BLOCK_SIZE=(of_query, of_key), mask_mod=mask_mod, seq_lengths=(Q_LEN, KV_LEN)
    )
