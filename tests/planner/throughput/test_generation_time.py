"""Seconds of a phase that generates."""

from __future__ import annotations

import pytest

from planner.predicting import estimate
from tests.planner.intake.jobs import scenario_of


def test_attention_kernels_differ_little_where_tokens_come_one_by_one() -> None:
    """A query of one token has no triangle of pairs, whoever counts its padding."""
    job = {"model": "llama-3.1-8b", "method": "lora", "task": "grpo", "stack": "trl", "seq": 2048, "batch": 8}
    times = [
        estimate(scenario_of(**job, gpu="a100-80-sxm", attention=name)).time for name in ("sdpa", "flash2")
    ]
    sdpa, flash2 = (float(time.step_s) for time in times if time is not None)
    assert flash2 == pytest.approx(sdpa, rel=0.1)
