"""The scan of Mamba 1 layers: what the package mamba-ssm allocates, which needs a GPU to import.

Source: mamba-ssm 2.3.2 mamba_ssm/ops/selective_scan_interface.py SelectiveScanFn,
csrc/selective_scan/selective_scan.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

SCAN_BLOCK = 2048
"""Positions whose last state is kept."""


def _along_positions(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


class SelectiveScan(torch.autograd.Function):
    """Values, steps, A, B, C, what skips the scan, gate and bias of the steps."""

    @staticmethod
    def forward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
        """Copies in which positions lie together, the output before and behind the gate,
        and a state for each block.
        """
        x, steps, a, b, c, skip, gate, bias = given
        if {each.dtype for each in (steps, b, c, gate)} != {x.dtype}:
            raise TypeError("the kernel of mamba-ssm takes values, steps, B, C and gate in one dtype")
        x, steps, skip = _along_positions(x), _along_positions(steps), skip.contiguous()
        b, c, gate = (_along_positions(each) for each in (b, c, gate))
        gated = torch.empty_like(gate)
        out = torch.empty_like(steps)
        blocks = -(-x.shape[-1] // SCAN_BLOCK)
        states = torch.empty(x.shape[0], x.shape[1], blocks, 2 * a.shape[-1], dtype=a.dtype, device=x.device)
        ctx.save_for_backward(x, steps, a, b, c, skip, gate, bias, states, out)
        return gated

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Every gradient is made, those of B and C in fp32."""
        x, steps, a, b, c, skip, gate, bias, _states, _out = ctx.saved_tensors
        _gradient = _along_positions(gradients[0])
        of_gate, of_x, of_steps, of_a = (torch.empty_like(each) for each in (gate, x, steps, a))
        of_b, of_c = (torch.zeros_like(each, dtype=torch.float32) for each in (b, c))
        of_skip, of_bias = torch.zeros_like(skip), torch.zeros_like(bias)
        return of_x, of_steps, of_a, of_b.to(b.dtype), of_c.to(c.dtype), of_skip, of_gate, of_bias


def selective_scan(x: torch.Tensor, steps: torch.Tensor, *others: torch.Tensor, **given: Any) -> torch.Tensor:
    """``selective_scan_fn``."""
    last = (given["D"], given["z"], given["delta_bias"])
    out: torch.Tensor = SelectiveScan.apply(x, steps, *others, *last)  # type: ignore[no-untyped-call]
    return out
