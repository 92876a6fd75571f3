"""FSDP1 around checkpointed layers with frozen weights, for real:
what of each layer is alive when the backward pass ends.

Run as a process of its own, because it makes a process group:
prints how many inputs and gradients are alive, as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import weakref
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.checkpoint import checkpoint

LAYERS = 4


class Layer(nn.Module):
    """A frozen matrix and a trained one, which is a unit of its own."""

    def __init__(self, inputs: list[Any]) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.adapter = nn.Linear(8, 8)
        self.inputs = inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both products; remembers the input of the second run."""
        if torch.is_grad_enabled():
            self.inputs.append(weakref.ref(x))
        out: torch.Tensor = self.base(x) + self.adapter(x)
        return out


class Model(nn.Module):
    """Layers one after the other, each checkpointed as Transformers does it: around what FSDP made of it."""

    def __init__(self, layers: list[nn.Module], around: bool) -> None:
        super().__init__()
        self.layers, self.around = nn.ModuleList(layers), around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All layers."""
        x = x * 1.0
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True) if self.around else layer(x)
        return x


def alive_at_the_end(around: bool) -> dict[str, int]:
    """Inputs, and gradients of inputs, alive after the first layer's backward; ``around``:
    checkpoints are around the units.
    """
    inputs: list[Any] = []
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layer = Layer(inputs)
        layer.adapter = wrapped(layer.adapter)
        layers.append(wrapped(layer))
    model = wrapped(Model(layers, around))
    found: dict[str, int] = {}

    def count(_: torch.Tensor) -> None:
        known = [ref() for ref in inputs]
        found["inputs"] = sum(each is not None for each in known)
        found["gradients"] = sum(each is not None and each.grad is not None for each in known)

    x = torch.ones(2, 8, requires_grad=True)
    x.register_hook(count)
    model(x).sum().backward()
    return found


def wrapped(module: nn.Module) -> Any:
    """An FSDP1 unit on the CPU."""
    return FullyShardedDataParallel(module, device_id=torch.device("cpu"))


def main() -> None:
    """Count with checkpoints around the units, and without any."""
    with tempfile.NamedTemporaryFile() as file:
        torch.distributed.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        sys.stdout.write(
            json.dumps({"around": alive_at_the_end(around=True), "plain": alive_at_the_end(around=False)})
        )
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
