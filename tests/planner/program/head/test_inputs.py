"""Masks: what they add to a step, worked out by hand."""

from __future__ import annotations

import pytest

import planner
from planner.program.step import step_of
from tests.jobs import job_by

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


@pytest.mark.parametrize(("attention", "n_windows"), [("sdpa", 1), ("flash2", 0)])
def test_a_mask_of_windows_is_made_where_no_layer_has_one(attention: str, n_windows: int) -> None:
    """Qwen1.5-MoE: one in each of two micro-steps and an evaluation; flash attention needs none."""
    flags = {"model": "qwen1.5-moe-a2.7b", "method": "lora", "gpu": "h200-sxm", "seq": SEQ, "batch": 1}
    stream = step_of(job_by({**flags, "attention": attention}))
    assert sum(stream.place(event)[2] == "gt" for event in stream.events if event >= 0) == 3 * n_windows
