"""What the program of MosaicML's first GPT block (``mosaic_gpt``, remote code) keeps,
against a block of the same operators.

The class ships with the checkpoint and cannot be run here;
``Block`` follows what ``read_mosaic_gpt`` says of it.
"""

from __future__ import annotations

from typing import Any

import pytest
from scenarios import BATCH, LENGTH, Setup, job

from tests.extras import import_or_skip

import_or_skip("torch")
import_or_skip("transformers")

import torch
from live_bytes import counting
from program_bytes import saved_by_a_layer
from torch import nn

HIDDEN, HEADS = 128, 4
CONFIG: dict[str, Any] = {
    "model_type": "mosaic_gpt", "d_model": HIDDEN, "n_heads": HEADS, "vocab_size": 320, "max_seq_len": LENGTH,
    "alibi": True, "attn_qk_ln": True, "no_bias": True,
}  # fmt: skip


class Block(nn.Module):
    """Norm, fused projection, norms of query and key, written-out attention with bias and causal mask,
    norm, GELU MLP.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN, bias=False) for _ in range(4))
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up, self.down = (
            nn.Linear(HIDDEN, 4 * HIDDEN, bias=False),
            nn.Linear(4 * HIDDEN, HIDDEN, bias=False),
        )

    def forward(self, stream: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """One layer."""
        query, key, value = self.qkv(self.norms[0](stream)).chunk(3, dim=2)
        heads = [self._split(each) for each in (self.norms[1](query), self.norms[2](key), value)]
        scores = heads[0].matmul(heads[1].transpose(-1, -2)) * (HIDDEN / HEADS) ** -0.5 + bias
        later = ~torch.ones(LENGTH, LENGTH, dtype=torch.float16).tril().bool()
        weights = torch.softmax(
            scores.masked_fill(later.view(1, 1, LENGTH, LENGTH), torch.finfo(scores.dtype).min), dim=-1
        )
        attended = weights.matmul(heads[2]).transpose(1, 2).reshape(BATCH, LENGTH, HIDDEN)
        stream = stream + self.out(attended)
        return stream + self.down(nn.functional.gelu(self.up(self.norms[3](stream))))

    @staticmethod
    def _split(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(BATCH, LENGTH, HEADS, HIDDEN // HEADS).transpose(1, 2)


def kept_bytes(layers: int) -> int:
    """Bytes that a forward of ``layers`` blocks in fp32 leaves for backward."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(layers))
    stream = torch.randn(BATCH, LENGTH, HIDDEN, requires_grad=True)
    bias = torch.zeros(1, HEADS, 1, LENGTH)
    with counting() as bytes_:
        out = stream
        for block in blocks:
            out = block(out, bias)
        live = bytes_.live
    assert out.requires_grad
    return int(live)


def test_saved_bytes_of_a_block() -> None:
    """In fp32, where casts are no copies, one more layer keeps what its program says.

    Not in the program: the layer's own causal mask, one byte per pair of positions; statistics of rows.
    """
    setup = Setup(dtype="fp32", attention="eager")
    measured = kept_bytes(2) - kept_bytes(1) - LENGTH * LENGTH
    assert saved_by_a_layer(job({**CONFIG, "n_layers": 2}, setup)) == pytest.approx(measured, rel=3e-3)
