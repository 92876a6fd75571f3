"""Log-probabilities of pairs, against the dry run of the trainer."""

from __future__ import annotations

from typing import Any

import pytest

from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.replayed import replayed
from planner.program.job import job_of

# ``examples/mistral/mistral-dpo-qlora.yml`` of Axolotl (2025-03).
MISTRAL: dict[str, Any] = {
    "stack": "axolotl",
    "task": "dpo",
    "model": "mistral-7b-instruct-v0.2",
    "method": "qlora",
    "seq": 2048,
    "batch": 16,
    "grad_accum": 4,
    "quant_storage": "bf16",
    "lora_rank": 8,
    "lora_targets": ("all-linear",),
    "modules_to_save": ("embed_tokens", "lm_head"),
    "gradient_checkpointing": True,
    "optimizer": "adamw_8bit",
    "gpu": "a100-80-sxm",
}


def test_axolotls_kernels_copy_the_cut_logits() -> None:
    """Axolotl 0.19.0: a copy in both passes, and none for the entropy."""
    job = job_of(resolve(from_flags(MISTRAL), force=True), Coefficients())
    assert job.stack.pair_logps == "fused_rows"
    found = max(int(each.allocated_bytes) for each in replayed(job).phases)
    assert found == pytest.approx(58_967_554_048, rel=0.005)
