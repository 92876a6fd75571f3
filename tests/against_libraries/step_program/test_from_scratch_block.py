"""What the program of the book's GPT-2 block keeps, against a block of the same operators,
in bytes counted while it runs.

The book's code is no package, so ``Block`` follows what ``read_gpt_from_scratch`` says of it.
"""

from __future__ import annotations

from typing import Any

import pytest
from scenarios import BATCH, LENGTH, Setup, job

from tests.extras import import_or_skip

import_or_skip("torch")

import torch
from live_bytes import counting
from program_bytes import saved_by_a_layer
from torch import nn

HIDDEN, HEADS, DROPPED = 128, 4, 0.1
CONFIG: dict[str, Any] = {
    "model_type": "gpt_from_scratch", "emb_dim": HIDDEN, "n_heads": HEADS, "vocab_size": 320,
    "context_length": LENGTH,
}  # fmt: skip


class Norm(nn.Module):
    """A layer norm of six operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(HIDDEN)), nn.Parameter(torch.zeros(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised over features."""
        centred = x - x.mean(-1, keepdim=True)
        return (
            self.weight * (centred / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)) + self.bias
        )


class Block(nn.Module):
    """Norm, projections, written-out attention, dropout, norm,
    MLP with a written-out GELU (or torch's classes), dropout.
    """

    def __init__(self, written: bool) -> None:
        super().__init__()
        self.written = written
        self.norms = nn.ModuleList(Norm() if written else nn.LayerNorm(HIDDEN) for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN, bias=index == 3) for index in range(4))
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.drop = nn.Dropout(DROPPED)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """One layer."""
        read = self.norms[0](stream)
        query, key, value = (self._split(linear(read)) for linear in self.projections[:3])
        scores = query @ key.transpose(2, 3)
        scores.masked_fill_(torch.ones(LENGTH, LENGTH).triu(1).bool(), float("-inf"))
        weights = self.drop(torch.softmax(scores / (HIDDEN / HEADS) ** 0.5, dim=-1))
        attended = (weights @ value).transpose(1, 2).reshape(BATCH, LENGTH, HIDDEN)
        stream = self.drop(self.projections[3](attended)) + stream
        return self.drop(self.down(self._activated(self.up(self.norms[1](stream))))) + stream

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        if not self.written:
            return nn.functional.gelu(x, approximate="tanh")
        return (
            0.5
            * x
            * (1 + torch.tanh(torch.sqrt(torch.tensor(2 / torch.pi)) * (x + 0.044715 * torch.pow(x, 3))))
        )

    @staticmethod
    def _split(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(BATCH, LENGTH, HEADS, HIDDEN // HEADS).transpose(1, 2)


def kept_bytes(layers: int, written: bool, dtype: torch.dtype) -> int:
    """Bytes that a forward of ``layers`` blocks leaves for backward, dropout masks counted as on CUDA:
    one byte an element.

    On the CPU they have the dtype of what they multiply.
    """
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block(written) for _ in range(layers)).to(dtype)
    stream = torch.randn(BATCH, LENGTH, HIDDEN, requires_grad=True, dtype=dtype)
    with counting() as bytes_:
        out = stream
        for block in blocks:
            out = block(out)
        live = bytes_.live
    masks = layers * BATCH * LENGTH * (HEADS * LENGTH + 2 * HIDDEN)
    assert out.requires_grad
    return int(live) - masks * (dtype.itemsize - 1)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("activation", ["gelu_new", "gelu"])
def test_saved_bytes_of_a_block(activation: str, dtype: Any) -> None:
    """One more layer keeps what its program says, in fp32 and in pure bf16,
    with norms written out and with torch's.

    Not in the program: the layer's own causal mask, one byte per pair of positions; statistics of rows.
    """
    setup = Setup(dtype=dtype, attention="eager")
    config = {**CONFIG, "activation_function": activation}
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    counted = [kept_bytes(layers, activation == "gelu_new", types[dtype]) for layers in (1, 2)]
    measured = counted[1] - counted[0] - LENGTH * LENGTH
    assert saved_by_a_layer(job({**config, "n_layers": 2}, setup)) == pytest.approx(measured, rel=3e-3)
