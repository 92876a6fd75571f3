"""How a call of Mamba 2's kernel is cut, and what its passes return and keep."""

from __future__ import annotations

import pytest

from tests.extras import import_or_skip

import_or_skip("torch")

import torch
from torch import Tensor

from measure.trace.cuda.state_space import ScanShape, split_scan
from tests.measure.trace.cuda.kept import keeping

HEADS, HEAD_DIM, GROUPS, STATE, CHUNK, TOKENS, OUT = 4, 8, 2, 16, 32, 65, 24
WIDTH = HEADS * HEAD_DIM
CONVOLVED = WIDTH + 2 * GROUPS * STATE


def shape(*, batch: int = 1, length: int = TOKENS, multiprocessors: int = 10) -> ScanShape:
    """Four heads in two groups."""
    return ScanShape(batch, length, HEADS, HEAD_DIM, GROUPS, STATE, CHUNK, multiprocessors)


def test_a_sample_is_cut_into_chunks_of_which_the_last_may_be_short() -> None:
    """65 tokens are three chunks of 32; every buffer has whole ones."""
    cut = shape(batch=2)
    like = torch.empty(1, dtype=torch.bfloat16)
    assert (cut.width, cut.n_chunks, shape(length=64).n_chunks) == (32, 3, 2)
    assert cut.numbers(like).nbytes == 4 * 2 * HEADS * 3 * CHUNK
    assert cut.scores(like).nbytes == 4 * 2 * 3 * GROUPS * CHUNK * CHUNK
    assert cut.states(like, torch.bfloat16).nbytes == 2 * 2 * 3 * HEADS * HEAD_DIM * STATE
    assert cut.last_states(like).nbytes == 4 * 2 * HEADS * HEAD_DIM * STATE


@pytest.mark.parametrize(("multiprocessors", "splits"), [(1000, 2), (12, 2), (11, 1), (1, 1)])
def test_heads_of_a_group_are_summed_in_as_many_parts_as_keep_the_card_busy(
    multiprocessors: int, splits: int
) -> None:
    """Twelve blocks of work: each part takes as many of a group's two heads as there is work to spare."""
    assert shape(multiprocessors=multiprocessors).splits == splits


def run(*, gated: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """One call; a norm in the kernel takes the place of the plain gate."""
    sizes: dict[str, tuple[int, ...]] = {
        "joined": (1, TOKENS, WIDTH + CONVOLVED + HEADS), "conv": (CONVOLVED, 4), "conv_bias": (CONVOLVED,),
        "bias": (HEADS,), "a": (HEADS,), "skip": (HEADS,), "norm": (WIDTH,), "matrix": (OUT, WIDTH),
    }  # fmt: skip
    given = {
        name: torch.zeros(size, dtype=torch.bfloat16, requires_grad=True) for name, size in sizes.items()
    }
    if gated:
        del given["norm"]
    out = split_scan(10)(
        given["joined"], given["conv"], given["conv_bias"], given["bias"], given["a"], D=given["skip"],
        headdim=HEAD_DIM, ngroups=GROUPS, chunk_size=CHUNK, rmsnorm_weight=given.get("norm"),
        outproj_weight=given["matrix"], outproj_bias=None,
    )  # fmt: skip
    return out, given


@pytest.mark.parametrize("gated", [True, False])
def test_every_weight_gets_a_gradient_of_its_shape(gated: bool) -> None:
    """The output has the features of the output projection."""
    out, given = run(gated=gated)
    assert tuple(out.shape) == (1, TOKENS, OUT)
    out.backward(torch.zeros_like(out))
    for name, tensor in given.items():
        assert tensor.grad is not None, name
        assert tensor.grad.shape == tensor.shape, name


def test_the_convolution_is_not_kept() -> None:
    """Saved are the product, weights, the scan's output, and one fp32 number for each token and group."""
    with keeping() as kept:
        _, given = run(gated=False)
    shapes = [tuple(each.shape) for each in kept]
    weights = [tuple(each.shape) for each in given.values()]
    assert sorted(shapes) == sorted([*weights, (1, TOKENS, WIDTH), (GROUPS * TOKENS,)])
