"""Logits that TRL's ``SFTTrainer`` copies for its metrics, counted by hand."""

from __future__ import annotations

import pytest

from tests.planner.program.head.test_ends import BATCH, SEQ, job
from tests.planner.program.head.test_losses import TOKENS, VOCABULARY, peak

WIDE = TOKENS * VOCABULARY * 4
"""Bytes of all logits in fp32."""


@pytest.mark.parametrize(
    ("trl", "more"),
    [
        ("0.14.0", 0),  # Log-softmax and two gradients are the peak.
        ("0.15.2", 0),  # The model's logits, its log-softmax and a copy are as many.
        ("0.22.2", 2 * WIDE + 3 * WIDE / BATCH - 3 * WIDE),
        ("0.23.1", 0),
        ("1.5.0", WIDE),  # A second copy beside the first.
        ("1.6.0", 0),
    ],
)
def test_copies_of_several_samples(trl: str, more: float) -> None:
    """Under autocast, whose wrapper hands logits back in fp32."""
    stack = {"stack": "trl", "loss": "hf", "precision": "bf16-mixed", "load_dtype": "bf16"}
    asked = job(**stack, method="lora", gradient_checkpointing=True, versions=(f"trl=={trl}",))

    assert peak(asked) == 3 * WIDE + max(more, 0)


def test_one_sample_is_not_copied() -> None:
    """Its logits are contiguous when they are cut, so that two trainers differ by no copy."""
    stack = {"stack": "trl", "loss": "hf", "precision": "bf16-mixed", "load_dtype": "bf16", "batch": 1}
    peaks = {
        peak(job(**stack, method="lora", gradient_checkpointing=True, versions=(f"trl=={version}",)))
        for version in ("0.14.0", "1.5.0")
    }

    assert peaks == {3 * SEQ * VOCABULARY * 4}


def test_entropy_of_one_sample_at_a_time() -> None:
    """A log-softmax, its exponential and their product, beside the logits and what the loss keeps."""
    stack = {"stack": "trl", "loss": "hf", "precision": "bf16-mixed", "load_dtype": "bf16", "batch": 1}
    asked = job(**stack, method="lora", gradient_checkpointing=True, versions=("trl==0.22.2",))

    assert peak(asked) == 5 * SEQ * VOCABULARY * 4


@pytest.mark.parametrize(("trl", "loss"), [("1.6.0", "hf"), ("1.7.0", "chunked")])
def test_since_when_the_default_makes_no_logits_of_all_tokens(trl: str, loss: str) -> None:
    """So that there are none to measure."""
    assert job(stack="trl", method="lora", versions=(f"trl=={trl}",)).recipe.loss == loss
