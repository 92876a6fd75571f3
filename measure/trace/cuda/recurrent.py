"""The kernels of layers without attention:
what the packages flash-linear-attention and causal-conv1d allocate.

Both need a GPU to import, and Transformers falls back to plain torch without them, which is another program.
Source: flash-linear-attention 0.6 fla/ops/gated_delta_rule/chunk.py (ChunkGatedDeltaRuleFunction),
chunk_fwd.py, wy_fast.py, fla/ops/common/chunk_delta_h.py, chunk_o.py, fla/modules/norm/l2norm.py;
causal-conv1d 1.6 causal_conv1d_interface.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from measure.trace.cuda.mamba_inner import mamba_inner
from measure.trace.cuda.selective_scan import selective_scan
from measure.trace.cuda.state_space import split_scan

CHUNK_TOKENS = 64


class Convolution(torch.autograd.Function):
    """A causal convolution of each feature with its activation, in one kernel."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """One output; input and weight are saved."""
        if x.stride(2) != 1 and x.stride(1) != 1:
            x = x.contiguous()
        out = torch.empty_like(x)
        ctx.save_for_backward(x, weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the weight are summed in fp32."""
        x, weight, bias = ctx.saved_tensors
        (gradient,) = gradients
        if gradient.stride(2) != 1 and gradient.stride(1) != 1:
            gradient = gradient.contiguous()
        of_x = torch.empty_like(x)
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        return of_x, of_weight.type_as(weight), None if of_bias is None else of_bias.type_as(bias)


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> torch.Tensor:
    """``causal_conv1d_fn``."""
    del activation
    out: torch.Tensor = Convolution.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def _chunks(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Keys and values as the state sees them, the states, and the new values."""
    batch, tokens, heads, width = value.shape
    n_chunks = -(-tokens // CHUNK_TOKENS)
    keys, values = key.new_empty(batch, tokens, heads, key.shape[-1]), torch.empty_like(value)
    states = key.new_empty(batch, n_chunks, heads, key.shape[-1], width)
    return keys, values, states, torch.empty_like(values)


def _summed(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The gradient of each key's head, over the values that it serves."""
    heads = like.shape[2]
    if heads == gradient.shape[2]:
        return gradient
    return gradient.view(*like.shape[:3], gradient.shape[2] // heads, like.shape[3]).sum(3)


def _gradients(saved: tuple[torch.Tensor, ...], gradient: torch.Tensor) -> list[torch.Tensor]:
    query, key, value, sums, beta = saved
    keys, _values, states, _new = _chunks(key, value)
    of_value = torch.empty_like(gradient)
    _of_states = query.new_empty(states.shape)
    of_value = torch.empty_like(of_value)
    shape = (*value.shape[:3], key.shape[-1])
    of_query, of_key = query.new_empty(shape), key.new_empty(shape)
    of_decay = torch.empty(1, *sums.shape, dtype=torch.float32, device=sums.device)
    _of_keys = torch.empty_like(keys)
    of_query = _summed(of_query, query)
    of_key = _summed(of_key, key)
    of_decay = of_decay.sum(0)
    more_of_key, new_of_value = key.new_empty(shape), torch.empty_like(value)
    more_of_decay, of_beta = torch.empty_like(sums), torch.empty_like(beta)
    more_of_key = _summed(more_of_key, key)
    of_value = new_of_value
    of_key.add_(more_of_key)
    of_decay.add_(more_of_decay)
    return [of_query, of_key, of_value, torch.empty_like(of_decay), of_beta]


class DeltaRule(torch.autograd.Function):
    """The rule over chunks; query and key are normed inside."""

    @staticmethod
    def forward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
        """Contiguous copies, norms, sums of decays, the inverse of each chunk, its states, and the output."""
        copies = [each.contiguous() for each in given]
        query, key, value, decay, beta = copies
        query, query_norm = (
            torch.empty_like(query),
            torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device),
        )
        key, key_norm = (
            torch.empty_like(key),
            torch.empty(key.shape[:-1], dtype=torch.float32, device=key.device),
        )
        sums = torch.empty_like(decay, dtype=torch.float32)
        inverse = torch.zeros(*beta.shape, CHUNK_TOKENS, dtype=key.dtype, device=key.device)
        _kept = _chunks(key, value)
        out = torch.empty_like(value)
        ctx.save_for_backward(query, query_norm, key, key_norm, value, sums, beta, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The chunks are computed again."""
        query, _query_norm, key, _key_norm, value, sums, beta, _inverse = ctx.saved_tensors
        made = _gradients((query, key, value, sums, beta), gradients[0].contiguous())
        made[0] = torch.empty_like(query)
        made[1] = torch.empty_like(key)
        return tuple(made)


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    g: torch.Tensor,
    beta: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """``chunk_gated_delta_rule``."""
    out: torch.Tensor = DeltaRule.apply(query, key, value, g, beta)  # type: ignore[no-untyped-call]
    return out, None


_KERNELS: dict[str, Any] = {"torch_chunk_gated_delta_rule": delta_rule, "causal_conv1d_fn": convolution}
_KERNELS |= {"mamba_selective_scan": selective_scan, "mamba_inner_fn": mamba_inner}
_SPLIT_SCAN = "mamba2_split_conv1d_scan_combined"
_MASK = "create_recurrent_attention_mask"


def _modelling_code(name: str) -> list[Any]:
    """The modelling code that was imported and knows ``name``."""
    modules = [
        module for path, module in list(sys.modules.items()) if path.startswith("transformers.models.")
    ]
    return [module for module in modules if name in vars(module)]


@contextmanager
def recurrent_kernels(multiprocessors: int) -> Iterator[None]:
    """Inside, modelling code runs these kernels, on a card with so many ``multiprocessors``."""
    with ExitStack() as stack:
        for kernel, ours in {**_KERNELS, _SPLIT_SCAN: split_scan(multiprocessors)}.items():
            for module in _modelling_code(kernel):
                stack.enter_context(mock.patch.object(module, kernel, ours))
        yield


@contextmanager
def recurrent_mask(*, padded: bool) -> Iterator[None]:
    """Inside, whether a layer without attention masks its input is known,
    and not asked of the mask's values.
    """

    def mask_of(
        *, inputs_embeds: torch.Tensor, attention_mask: torch.Tensor | None, **_: Any
    ) -> torch.Tensor | None:
        if attention_mask is None or attention_mask.ndim != 2 or inputs_embeds.shape[1] == 1:
            return None
        torch.all(attention_mask == 1)  # what the question itself allocates is recorded
        return attention_mask[:, -inputs_embeds.shape[1] :].contiguous() if padded else None

    with ExitStack() as stack:
        for module in _modelling_code(_MASK):
            stack.enter_context(mock.patch.object(module, _MASK, mask_of))
        yield
