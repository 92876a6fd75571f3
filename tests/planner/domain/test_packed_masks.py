"""Attention over packed samples: which stacks tell them apart by a mask, and over how many tokens."""

from __future__ import annotations

from functools import partial

import pytest

from planner.memory.replayed import replayed
from planner.predicting import PRIORS, predict_with
from planner.program.job import job_of
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.units import GIB
from tests.jobs import resolved, typed

BATCH, SEQ = 4, 2048


job = partial(
    resolved,
    (
        f"--model llama-3.2-1b --method lora --gpu a100-80-sxm --seq {SEQ} --batch {BATCH} --padding packed "
        "--attention sdpa --no-gradient-checkpointing"
    ),
)
"""A LoRA fine-tune of Llama 3.2 1B on packed samples."""


@pytest.mark.parametrize(
    ("stack", "attention", "pairs"),
    [
        ("trl", "sdpa", (BATCH * SEQ) ** 2),
        ("trl", "eager", (BATCH * SEQ) ** 2),
        ("trl", "flash2", (BATCH * SEQ) ** 2),
        ("axolotl", "sdpa", BATCH * SEQ**2),
        ("axolotl", "eager", BATCH * SEQ**2),
        ("llama-factory-v1", "sdpa", (BATCH * SEQ) ** 2),
        ("open-instruct", "sdpa", (BATCH * SEQ) ** 2),
        ("open-instruct@2024", "sdpa", BATCH * SEQ**2),
        ("hf-trainer", "sdpa", BATCH * SEQ**2),
    ],
)
def test_pairs_of_tokens(stack: str, attention: str, pairs: int) -> None:
    """TRL lays all rows end to end, so that a mask grows with the square of the batch."""
    made = job_of(job(stack=stack, attention=attention), PRIORS)
    assert unit_values(made)[Unit.PAIRS] == pairs


@pytest.mark.parametrize(
    ("stack", "masked"),
    [
        ("trl", True),
        ("axolotl", False),
        ("axolotl@0.8", True),
        ("hf-trainer", False),
        ("trl@0", False),
        ("llama-factory-v1", True),
        ("open-instruct", True),
        ("open-instruct@2024", False),
    ],
)
def test_who_masks(stack: str, masked: bool) -> None:
    """Transformers before 4.53 and collators without positions make no mask, nor does FlashAttention."""
    scenario = job(stack=stack)
    assert scenario.stack.masks_samples(scenario.recipe) is masked
    flash = job(stack=stack, attention="flash2")
    assert not flash.stack.masks_samples(flash.recipe)


def test_numbers_of_samples_are_a_mask_in_older_transformers_alone() -> None:
    """Axolotl up to 0.18 numbers them in the mask, of which Transformers since 4.53 makes booleans."""
    older = job(stack="axolotl@0.8")
    assert older.stack.masks_samples(older.recipe)
    newer = job(stack="axolotl", versions="axolotl==0.10.0")
    assert newer.stack.packed_mask == "collated"
    assert not newer.stack.masks_samples(newer.recipe)


def test_what_trl_itself_allocates() -> None:
    """Peaks of TRL 1.16's own trainer on packed rows, by a dry run of ``trl sft``: 22.74 GiB with torch's
    fused attention, 230.64 with eager and 19.93 with FlashAttention; LoRA of rank 16 on all matrices.
    """
    more = typed(
        "--stack trl --loss chunked --load-dtype bf16 --lora-rank 16 --lora-targets all-linear "
        "--lora-dropout 0.05"
    )
    for attention, peak in (("sdpa", 22.74), ("eager", 230.64), ("flash2", 19.93)):
        made = replayed(job_of(job(attention=attention, **more), PRIORS))
        assert made.allocated_bytes / GIB == pytest.approx(peak, rel=0.002)


@pytest.mark.parametrize(("model", "masked"), [("llama-3.2-1b", False), ("mistral-7b-v0.1", True)])
def test_axolotl_masks_where_its_kernel_does_not_serve(model: str, *, masked: bool) -> None:
    """``varlen_attn`` runs for no layer with a window; eager attention has a mask of each row always."""
    for attention, expected in (("sdpa", masked), ("eager", True)):
        scenario = job(stack="axolotl", model=model, attention=attention)
        assert scenario.stack.masks_samples(scenario.recipe) is expected


def test_axolotls_kernel_reads_keys_of_all_heads() -> None:
    """By hand: 16 layers keep 32 heads in the place of 8, of keys and of values, in 16 bits."""
    sdpa, flash = (
        replayed(job_of(job(stack="axolotl", attention=each), PRIORS)).allocated_bytes
        for each in ("sdpa", "flash2")
    )
    assert sdpa - flash == 16 * 2 * (32 - 8) * 64 * BATCH * SEQ * 2


def test_axolotls_kernel_is_not_called_for_rows_of_one_sample() -> None:
    """Axolotl 0.19 monkeypatch/attention/sdpa_varlen.py hands rows of one sample to torch's kernel,
    which reads as few heads of keys as FlashAttention does.

    By its own run the QLoRA of Qwen2.5 0.5B with 2 x 1,024 tokens has 5.98 GiB allocated, not 6.09.
    """
    sdpa, flash = (
        replayed(job_of(job(stack="axolotl", attention=each, padding="longest"), PRIORS)).allocated_bytes
        for each in ("sdpa", "flash2")
    )
    assert sdpa == flash


def test_the_step_takes_longer_with_the_mask() -> None:
    """All pairs of 8,192 tokens are computed, four times as many as those of four rows."""
    masked, plain = (
        predict_with(job(stack=stack, attention="sdpa"), PRIORS) for stack in ("trl", "hf-trainer")
    )
    assert masked.time is not None
    assert plain.time is not None
    assert float(masked.time.step_s) > 1.05 * float(plain.time.step_s)
    assert float(masked.time.samples_per_s) == pytest.approx(BATCH / float(masked.time.step_s))
