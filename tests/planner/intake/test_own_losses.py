"""Losses of single classes of Transformers, against the dry runs of TRL 0.12 beside Transformers 4.46.3."""

from __future__ import annotations

from typing import Any

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import replayed
from planner.program.job import job_of
from tests.jobs import resolved, typed

SAID: dict[str, Any] = typed(
    "--gpu a100-80-sxm --stack trl@0 --method full --padding packed --load-dtype bf16 "
    "--precision bf16-mixed --gradient-checkpointing --model gpt2 --seq 1024"
)
NARROW, IN_PLACE = ("compute", "shifted", "log_softmax"), ("float", "shifted", "log_softmax")
COMMON = ("compute", "float", "shifted", "log_softmax")


@pytest.mark.parametrize(
    ("model", "version", "copies"),
    [
        ("gpt2", "4.37.2", NARROW),
        ("gpt2", "4.47.1", NARROW),
        ("gpt2", "4.48.0", COMMON),
        ("mistral-7b-v0.1", "4.45.2", IN_PLACE),
        ("mistral-7b-v0.1", "4.47.1", IN_PLACE),
        ("mistral-7b-v0.1", "4.48.0", COMMON),
        ("llama-2-7b", "4.46.3", COMMON),
        ("gpt2", "5.1.0", ("compute", "float", "log_softmax")),
    ],
)
def test_the_loss_of_a_class(model: str, version: str, copies: tuple[str, ...]) -> None:
    """Which logits are alive follows the class until it takes the common loss."""
    said = {**SAID, "stack": "hf-trainer@5", "model": model, "versions": (f"transformers=={version}",)}
    assert resolved(said).stack.loss_forward == copies


def test_a_switch_wins() -> None:
    """What a user says about the loss holds for every class."""
    said = {**SAID, "versions": ("transformers==4.46.3",), "switches": ("loss_forward=compute+log_softmax",)}
    assert resolved(said).stack.loss_forward == ("compute", "log_softmax")


@pytest.mark.parametrize(
    ("flags", "dry_run"),
    [
        ({"batch": 8, "checkpoint_reentrant": False}, 5_915_587_584),
        (
            {"model": "mistral-7b-v0.1", "seq": 2048, "batch": 32, "grad_accum": 2, "attention": "flash2"},
            102_431_328_768,
        ),
    ],
)
def test_the_peak_is_that_of_the_dry_run(flags: dict[str, Any], dry_run: int) -> None:
    """``recipes/gpt2-nl/sft`` and ``tests/fixtures/config_sft_full.yaml`` of alignment-handbook."""
    versions = ("transformers==4.46.3", "peft==0.13.2", "trl==0.12.1")
    job = job_of(resolved({**SAID, **flags, "versions": versions}, force=True), Coefficients())
    found = max(int(each.allocated_bytes) for each in replayed(job).phases)
    assert found == pytest.approx(dry_run, rel=0.003)
