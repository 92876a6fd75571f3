"""What the program of BTLM's block (remote code) keeps, against a block of the same operators.

The class ships with the checkpoint and cannot be run here;
``Block`` follows what ``read_btlm`` says of it.
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
from transformers.pytorch_utils import Conv1D

from planner.catalog.hf_config import model_from_config
from planner.program.ops.tensors import Unit
from planner.program.step import step_of

HIDDEN, HEADS, WIDTH = 128, 4, 340
CONFIG: dict[str, Any] = {
    "model_type": "btlm", "n_embd": HIDDEN, "n_head": HEADS, "n_inner": WIDTH, "vocab_size": 320,
    "n_positions": LENGTH, "activation_function": "swiglu", "position_embedding_type": "alibi",
    "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip


class Block(nn.Module):
    """Norm, fused projection, written-out attention with a bias added in place, norm, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.qkv, self.out = Conv1D(3 * HIDDEN, HIDDEN), Conv1D(HIDDEN, HIDDEN)
        self.gate, self.up, self.down = Conv1D(WIDTH, HIDDEN), Conv1D(WIDTH, HIDDEN), Conv1D(HIDDEN, WIDTH)

    def forward(self, stream: torch.Tensor, mask: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """One layer."""
        query, key, value = map(self._split, self.qkv(self.norms[0](stream)).split(HIDDEN, dim=2))
        weights = torch.matmul(query, key.transpose(-1, -2))
        weights = weights / torch.full([], HIDDEN / HEADS) + mask
        weights += bias.type_as(weights).unsqueeze(0)
        attended = torch.matmul(nn.functional.softmax(weights, dim=-1), value)
        stream = self.out(attended.permute(0, 2, 1, 3).contiguous().view(BATCH, LENGTH, HIDDEN)) + stream
        normed = self.norms[1](stream)
        gate = self.gate(normed)
        return stream + self.down(self.up(normed) * nn.functional.silu(gate))

    @staticmethod
    def _split(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(BATCH, LENGTH, HEADS, HIDDEN // HEADS).permute(0, 2, 1, 3)


def kept_bytes(layers: int) -> int:
    """Bytes that a forward of ``layers`` blocks in fp32 leaves for backward."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(layers))
    stream = torch.randn(BATCH, LENGTH, HIDDEN, requires_grad=True)
    mask, bias = torch.zeros(BATCH, 1, LENGTH, LENGTH), torch.zeros(HEADS, LENGTH, LENGTH)
    with counting() as bytes_:
        out = stream
        for block in blocks:
            out = block(out, mask, bias)
        live = bytes_.live
    assert out.requires_grad
    return int(live)


def test_saved_bytes_of_a_block() -> None:
    """In fp32, where casts are no copies, one more layer keeps what its program says."""
    setup = Setup(dtype="fp32", attention="eager")
    measured = kept_bytes(2) - kept_bytes(1)
    assert saved_by_a_layer(job({**CONFIG, "n_layer": 2}, setup)) == pytest.approx(measured, rel=3e-3)


def test_parameters_of_a_block() -> None:
    """Those of the module, of each of two layers."""
    one, two = (model_from_config({**CONFIG, "n_layer": n}, "config").param_count for n in (1, 2))
    assert two - one == sum(each.numel() for each in Block().parameters())


def test_the_position_bias_is_made_once_a_pass() -> None:
    """Four bytes for each head and pair of positions, whatever the number of layers."""
    stream = step_of(job({**CONFIG, "n_layer": 2}, Setup(dtype="fp32", attention="eager")))
    until = next(begin for begin, phase in stream.phases if phase == "loss")
    made = [event for event in stream.events[:until] if event >= 0 and stream.place(event)[0] == "embeddings"]
    pairs = [stream.unit_bytes[event] for event in made if stream.units[event] == Unit.LENGTH_PAIRS]
    assert pairs.count(4 * HEADS) == 1
