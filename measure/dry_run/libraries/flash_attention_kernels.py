"""The compiled part of the package flash-attn 2, which needs a card: torch's copies of its kernels stand in.

Without CUDA the package itself installs with ``FLASH_ATTENTION_FORCE_BUILD=TRUE
FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE`` (its setup.py).  Source: flash-attn 2.8 flash_attn_interface.py
(``flash_attn_gpu``), csrc/flash_attn/flash_api.cpp.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from types import ModuleType
from typing import Any

import torch

from measure.dry_run.guesses import Guesses
from measure.trace.cuda.sdpa import flash_workspace

Kernel = Callable[..., tuple[torch.Tensor, ...]]
_NAME = "flash_attn_2_cuda"
# Before, forward returned its padded inputs, too.
_FIRST = (2, 7)
# What torch calls private here has no public name.
_forward = torch.ops.aten._flash_attention_forward  # noqa: SLF001


def install(guesses: Guesses) -> None:
    """Stand in for the compiled module, in a version whose calls are known."""
    module = ModuleType(_NAME)
    module.__spec__ = ModuleSpec(_NAME, None)
    found = version("flash-attn")
    if tuple(int(each) for each in found.split(".")[:2]) < _FIRST:
        vars(module)["__getattr__"] = _refusing(guesses, found)
    else:
        for each in (fwd, varlen_fwd, bwd, varlen_bwd):
            setattr(module, each.__name__, _noted(guesses, each))
    sys.modules[_NAME] = module


def _noted(guesses: Guesses, kernel: Kernel) -> Kernel:
    def run(*given: Any) -> tuple[torch.Tensor, ...]:
        guesses.assume("kernels of flash-attn", "torch's copies", kernel.__name__)
        return kernel(*given)

    return run


def _refusing(guesses: Guesses, found: str) -> Callable[[str], Any]:
    def refuse(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        guesses.refuse(
            "has kernels without a stand-in; version 2.7 and later have one", f"flash-attn {found}"
        )
        raise NotImplementedError(f"flash-attn {found} has no stand-in; 2.7 and later have one")

    return refuse


def fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    """Attention of (batch, tokens, heads, width).
    ``rest``: out, alibi_slopes, dropout_p, softmax_scale, causal, and more that allocates nothing.
    """
    dropout, scale, causal = rest[2:5]
    return _attend((q, k, v), (None, None, q.size(1), k.size(1)), (dropout, scale, causal))


def varlen_fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
    """Attention of (tokens, heads, width), samples end to end.
    ``rest``: out, the edges of queries and keys, seqused_k, leftpad_k, block_table, alibi_slopes, the longest
    of both, dropout_p, softmax_scale, zero_tensors, causal, and more that allocates nothing.
    """
    _, edges_q, edges_k = rest[:3]
    longest_q, longest_k, dropout, scale, _, causal = rest[7:13]
    return _attend((q, k, v), (edges_q, edges_k, longest_q, longest_k), (dropout, scale, causal))


def _attend(
    inputs: tuple[torch.Tensor, ...], rows: tuple[Any, ...], how: tuple[float, float, bool]
) -> tuple[torch.Tensor, ...]:
    dropout, scale, causal = how
    out, sums, state, _, scores = _forward(*inputs, *rows, dropout, causal, False, scale=scale)
    return out, sums, scores, state


def bwd(*given: Any) -> tuple[torch.Tensor, ...]:
    """Gradients, written to those that are given: dout, q, k, v, out, softmax_lse, dq, dk, dv, and more."""
    dout, q, k, v, out, sums = given[:6]
    return _differentiate((dout, q, k, v, out, sums), given[6:9], (None, None, q.size(1), k.size(1)))


def varlen_bwd(*given: Any) -> tuple[torch.Tensor, ...]:
    """The same of samples end to end; behind dv come the edges of queries and keys, alibi_slopes and the
    longest of both.
    """
    edges_q, edges_k, _, longest_q, longest_k = given[9:14]
    return _differentiate(given[:6], given[6:9], (edges_q, edges_k, longest_q, longest_k))


def _differentiate(
    saved: tuple[Any, ...], gradients: tuple[torch.Tensor, ...], rows: tuple[Any, ...]
) -> tuple[torch.Tensor, ...]:
    """What lies beside the gradients while the kernel runs; the first is returned."""
    dout, *others = saved
    beside = [
        torch.empty(n_bytes, dtype=torch.uint8, device=dout.device)
        for n_bytes in flash_workspace(dout, *others, *rows)
    ]
    return *gradients, beside[0].view(torch.float32)
