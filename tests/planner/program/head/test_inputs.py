"""Masks: what they add to a step, worked out by hand."""

from __future__ import annotations

import pytest

import planner

SEQ, ROWS, BF16 = 4096, 2, 2


def allocated(**said: object) -> int:
    """Peak of a small job whose samples are packed."""
    flags: dict[str, object] = {
        "model": "llama-3.2-1b", "method": "lora", "gpu": "h100-sxm", "batch": ROWS, "seq": SEQ,
        "padding": "packed", "stack": "llama-factory", "gradient_checkpointing": True, **said,
    }  # fmt: skip
    return planner.estimate(**flags).peak.allocated_bytes  # type: ignore[arg-type]


def test_a_mask_that_comes_with_the_batch_is_there_all_the_time() -> None:
    """One square of the length for each row, in the compute dtype: the peak is in the loss."""
    added = allocated(switches=("sdpa_mask=given",)) - allocated()
    assert added == pytest.approx(ROWS * SEQ * SEQ * BF16, rel=0.01)


def test_flash_attention_takes_no_such_mask() -> None:
    """``flash2`` tells samples apart by their positions."""
    assert allocated(attention="flash2", switches=("sdpa_mask=given",)) == allocated(attention="flash2")
