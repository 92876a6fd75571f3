"""The whole mixer of Mamba 1 behind its input projection: what the package mamba-ssm allocates, which needs a
GPU to import.

Source: mamba-ssm 2.3.2 mamba_ssm/ops/selective_scan_interface.py MambaInnerFn,
csrc/selective_scan/selective_scan.cpp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from measure.trace.cuda.selective_scan import SCAN_BLOCK


def _values_and_steps(
    joined: torch.Tensor, step: torch.Tensor, small: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.empty_like(joined.chunk(2, dim=1)[0])
    steps = step @ small[:, : step.shape[1]].t()
    return values, steps.view(-1, values.shape[0], values.shape[2]).transpose(0, 1)


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).reshape(-1, x.shape[1])


class MambaInner(torch.autograd.Function):
    """The input projection's product, convolution, three matrices, A, D and the bias of the steps."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def forward(ctx: Any, joined: torch.Tensor, *given: Any) -> torch.Tensor:
        """Saved are a copy of the product, the small one, B, C, and the scan's output before the gate."""
        conv, conv_bias, *matrices, out_bias, a, skip, bias = given
        if torch.is_autocast_enabled("cpu"):
            matrices = [each.to(torch.get_autocast_dtype("cpu")) for each in matrices]
        small_weight, step, out_weight = matrices
        joined = joined.contiguous()
        values = torch.empty_like(joined.chunk(2, dim=1)[0])
        small = functional.linear(_by_rows(values), small_weight)
        steps = step @ small[:, : step.shape[1]].t()
        b, c = (small[:, : a.shape[1]].clone() for _ in range(2))
        out = torch.empty_like(steps)
        blocks = -(-joined.shape[-1] // SCAN_BLOCK)
        states = a.new_empty(joined.shape[0], a.shape[0], blocks, 2 * a.shape[1])
        gated = torch.empty_like(values)
        del values, steps
        ctx.save_for_backward(joined, conv, conv_bias, small, *matrices, a, b, c, skip, bias, states, out)
        return functional.linear(gated.transpose(1, 2), out_weight, out_bias)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Every gradient is made; the convolution and the steps are computed again."""
        joined, conv, conv_bias, small, small_weight, step, out_weight, a, b, c, *rest = ctx.saved_tensors
        skip, bias, _states, _out = rest
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1]).t()
        values, steps = _values_and_steps(joined, step, small)
        of_joined = torch.empty_like(joined)
        _of_out = out_weight.t() @ gradient
        of_values, of_steps, of_a = (torch.empty_like(each) for each in (values, steps, a))
        of_b, of_c = (torch.zeros_like(each, dtype=torch.float32) for each in (b, c))
        of_skip, of_bias = torch.zeros_like(skip), torch.zeros_like(bias)
        gated = torch.empty_like(values)
        of_b, of_c = of_b.to(b.dtype), of_c.to(c.dtype)
        of_out_weight = gradient @ _by_rows(gated)
        of_small = torch.empty_like(small)
        flat = of_steps.transpose(0, 1).reshape(step.shape[0], -1)
        of_step = flat @ small[:, : step.shape[1]]
        of_small[:, : step.shape[1]] = flat.t() @ step
        of_small_weight = of_small.t() @ _by_rows(values)
        of_values.transpose(0, 1).reshape(a.shape[0], -1).addmm_(small_weight.t(), of_small.t())
        of_conv = torch.zeros_like(conv, dtype=torch.float32).to(conv.dtype)
        of_conv_bias = None
        if conv_bias is not None:
            of_conv_bias = torch.zeros_like(conv_bias, dtype=torch.float32).to(conv_bias.dtype)
        of_out_bias = gradient.sum(1) if ctx.needs_input_grad[6] else None
        found = (of_small_weight, of_step, of_out_weight, of_out_bias, of_a, of_skip, of_bias)
        return of_joined, of_conv, of_conv_bias, *found


def mamba_inner(joined: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
    """``mamba_inner_fn``, which takes neither B nor C nor norms."""
    *first, _b, _c, skip = given
    inputs = (joined, *first, skip, named["delta_bias"])
    out: torch.Tensor = MambaInner.apply(*inputs)  # type: ignore[no-untyped-call]
    return out
