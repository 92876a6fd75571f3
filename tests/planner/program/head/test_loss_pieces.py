"""Tokens of one piece of the loss, for Llama 3.1 8B with 16,384 tokens: 4,096 features, 128,256 words."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from planner.catalog.stacks import with_switches
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.head.loss_pieces import fused_logits, piece_tokens
from planner.program.job import job_of
from planner.units import GIB
from tests.jobs import job_by

SEQ, HIDDEN, WORDS = 16_384, 4096, 128_256


job = partial(job_by, model="llama-3.1-8b", method="qlora", gpu="a100-80-sxm", seq=SEQ, stack="unsloth")
"""A QLoRA under Unsloth, unless told otherwise."""


def test_pieces_are_planned_in_four_gib() -> None:
    """16 bytes a logit: 31.3 GiB in 4 GiB less the input's gradient, and twice the head's, are 17 pieces,
    rounded up to fours: twenty.
    """
    gradient, planned = (SEQ + 2 * WORDS) * HIDDEN * 2, SEQ * WORDS * 16
    assert 16 < planned / (4 * GIB - gradient) < 17
    assert piece_tokens(job(method="full")) == -(-SEQ // 20)


@pytest.mark.parametrize(
    ("gpu", "seq", "pieces"),
    [
        ("a100-80-sxm", 4097, (4096, 4096 * 16_384)),
        ("a100-80-sxm", 4096, (512, 512 * WORDS)),
        ("a100-80-sxm", 257, (256, 256 * WORDS)),
        ("rtx4090", 257, (256, 256 * 16_384)),
        ("rtx4090", 16_385, (4096, 4096 * 16_384)),
        ("t4", 4097, (512, 512 * WORDS)),
    ],
)
def test_a_fused_head_holds_tiles_or_some_rows(gpu: str, seq: int, pieces: tuple[int, int]) -> None:
    """On a small card always tiles, on a large one from 4,096 labels on, on a T4 never.

    On an H100, Llama 3.2 1B with 4,094 labels took 262,668,288 bytes, 512 rows in fp32.
    """
    assert fused_logits(job(gpu=gpu, seq=seq, precision="fp16" if gpu == "t4" else None)) == pieces


def test_what_fits_is_not_cut() -> None:
    """512 tokens are 1 GiB; eighths cut them all the same."""
    short = job(seq=512, method="full")
    assert piece_tokens(short) == 512
    eighths = replace(short.scenario, stack=with_switches(short.stack, {"loss_pieces": "eighths"}, "test"))
    assert piece_tokens(job_of(eighths, Coefficients())) == 512 / 8


@pytest.mark.parametrize(("seq", "tokens"), [(2048, 64), (2049, 128), (16, 1)])
def test_ligers_pieces_are_a_power_of_two(seq: int, tokens: int) -> None:
    """Tokens / 32, which is the vocabulary over the features, rounded up twice."""
    assert piece_tokens(job(seq=seq, stack="hf-trainer@5", loss="liger")) == tokens


def test_a_loss_of_all_logits_has_one_piece() -> None:
    """And one in eighths that many."""
    assert piece_tokens(job(stack="hf-trainer@5", loss="hf")) == SEQ
    assert piece_tokens(job(stack="hf-trainer@5", loss="chunked")) == SEQ / 8
