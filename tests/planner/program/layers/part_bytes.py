"""Bytes of each token that one part of a layer allocates, beside what the library's own code does."""

from __future__ import annotations

import sys
from collections.abc import Callable

from planner.program.ops.autograd import run_backward
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Node, Tensor, Unit

PartBytes = tuple[float, float, float]
"""Left by the forward pass, and the most in each of the two passes."""


class Meter:
    """Bytes of a layer's allocations that are alive, of one token or of all, and the most so far."""

    def __init__(self) -> None:
        self.now = self.most = 0.0

    def follow(self, torch: Operators, stage: str) -> None:
        """The events of one stage, but for those of the input."""
        self.most = self.now
        for event in torch.stages[stage]:
            slot = event if event >= 0 else ~event
            if slot and torch.units[slot] is Unit.TOKENS:
                self.now += torch.unit_bytes[slot] * (1 if event >= 0 else -1)
                self.most = max(self.most, self.now)


def part_bytes(hidden_size: int, run: Callable[[Operators, Tensor], Tensor]) -> PartBytes:
    """Those of a part that ``run`` makes of the stream; its input is not counted, a gradient is."""
    torch, meter = Operators(), Meter()
    torch.enter("ports")
    x = torch.new(Unit.TOKENS, hidden_size, "bf16", "input")
    x.node = Node("input", sys.maxsize, None)
    torch.enter("forward")
    out = run(torch, x)
    root, out.node = out.node, None
    meter.follow(torch, "forward")
    kept, forward = meter.now, meter.most
    assert root is not None
    torch.enter("nowhere")
    arrived = [torch.like(out, "gradient", cost=None)]
    torch.enter("backward")
    run_backward(torch, root, arrived)
    meter.now += hidden_size * 2
    meter.follow(torch, "backward")
    return kept, forward, meter.most
