"""What the kernels of layers without attention return, keep, and ask of a mask."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.extras import import_or_skip

import_or_skip("transformers")

import torch
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5

from measure.trace.cuda.recurrent import convolution, delta_rule, recurrent_mask
from tests.measure.trace.cuda.kept import keeping

BATCH, TOKENS, KEY_HEADS, HEADS, KEY_WIDTH, WIDTH = 2, 100, 2, 4, 8, 16
HALF = torch.bfloat16


def test_a_convolution_keeps_its_input_and_weights() -> None:
    """Gradients come in the dtypes of what they are of, though they are summed in fp32."""
    x = torch.zeros(BATCH, 6, TOKENS, dtype=HALF, requires_grad=True)
    weight, bias = (torch.zeros(size, dtype=HALF, requires_grad=True) for size in ((6, 4), (6,)))
    with keeping() as kept:
        out = convolution(x, weight, bias, "silu")
    assert [each.shape for each in kept] == [x.shape, weight.shape, bias.shape]
    out.backward(torch.zeros_like(out))
    assert all(each.grad is not None and each.grad.dtype == HALF for each in (x, weight, bias))
    assert convolution(x, weight).shape == x.shape


def test_an_input_whose_rows_lie_apart_is_copied() -> None:
    """The kernel reads features or tokens that lie together, and no third form."""
    wide = torch.zeros(BATCH, TOKENS, 2, 6).permute(0, 3, 1, 2)[..., 0]
    weight = torch.zeros(6, 4, requires_grad=True)
    with keeping() as kept:
        convolution(wide, weight)
        convolution(wide[:, ::2], weight)
    assert kept[0].data_ptr() == wide.data_ptr()
    assert kept[2].data_ptr() != wide.data_ptr()


@pytest.mark.parametrize("key_heads", [KEY_HEADS, HEADS])
def test_the_delta_rule_keeps_normed_copies_and_the_inverse_of_each_chunk(key_heads: int) -> None:
    """64 numbers for each token and head, fp32 norms and sums; keys' heads may serve several values."""
    query, key = (
        torch.zeros(BATCH, TOKENS, key_heads, KEY_WIDTH, dtype=HALF, requires_grad=True) for _ in "qk"
    )
    value = torch.zeros(BATCH, TOKENS, HEADS, WIDTH, dtype=HALF, requires_grad=True)
    decay, beta = (
        torch.zeros(BATCH, TOKENS, HEADS, dtype=kind, requires_grad=True) for kind in (torch.float32, HALF)
    )
    with keeping() as kept:
        out, state = delta_rule(query, key, value, g=decay, beta=beta)
    assert state is None
    assert out.shape == value.shape
    rows = BATCH * TOKENS
    norms, numbers = 4 * rows * key_heads, rows * HEADS
    assert Counter(each.nbytes for each in kept) == Counter(
        [query.nbytes, key.nbytes, norms, norms, value.nbytes, 4 * numbers, 2 * numbers, 2 * 64 * numbers]
    )
    out.backward(torch.zeros_like(out))
    for each in (query, key, value, decay, beta):
        assert each.grad is not None
        assert each.grad.shape == each.shape


@pytest.mark.parametrize("mask", [None, torch.ones(2, 1, 3, 3), torch.ones(2, 3)])
def test_no_mask_of_rows_means_none(mask: Tensor | None) -> None:
    """Nor does a batch of one token, even where it is padded."""
    length = 1 if mask is not None and mask.ndim == 2 else 3
    with recurrent_mask(padded=True):
        asked = modeling_qwen3_5.create_recurrent_attention_mask
        assert asked(inputs_embeds=torch.ones(2, length, 8), attention_mask=mask) is None


def test_a_longer_mask_is_cut_to_the_tokens_at_hand() -> None:
    """The last ones count."""
    mask = torch.tensor([[0, 0, 0, 1, 1, 1]])
    with recurrent_mask(padded=True):
        asked = modeling_qwen3_5.create_recurrent_attention_mask
        found = asked(inputs_embeds=torch.ones(1, 3, 8), attention_mask=mask)
    assert found.tolist() == [[1, 1, 1]]
