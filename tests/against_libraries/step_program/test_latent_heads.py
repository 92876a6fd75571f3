"""FlashAttention of heads whose values are narrower than their keys: the program beside the real modules."""

from __future__ import annotations

from pathlib import Path

import pytest
from matrix.models import write_config

from tests.extras import import_or_skip

import_or_skip("peft")

from measure.trace.traced_job import trace_events
from planner.allocator.documents.summary import summarize
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import replayed
from planner.program.job import job_of
from tests.jobs import resolved


@pytest.mark.parametrize("tokens", [256, 100])
def test_values_are_padded_and_the_output_cropped(tmp_path: Path, tokens: int) -> None:
    """Each pass without checkpointing, with full rows and with padded ones, whose padding is taken out
    behind that; small tensors of the router are left out.
    """
    flags = {
        "model": str(write_config("deepseek-v2-lite", tmp_path, small=True)),
        "method": "full",
        "gpu": "a100-80-sxm",
        "seq": 256,
        "batch": 2,
        "padding": "max_length",
        "tokens_per_sample": tokens,
        "attention": "flash2",
        "gradient_checkpointing": False,
    }
    case = resolved(flags)
    trace = {each.peaks.phase: each.peaks for each in summarize(trace_events(case)).phases}
    plan = {each.phase: each for each in replayed(job_of(case, Coefficients())).phases}
    for phase in ("forward", "backward", "forward_2", "backward_2"):
        assert plan[phase].allocated_bytes == pytest.approx(trace[phase].allocated_bytes, rel=0.003), phase
