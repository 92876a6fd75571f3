"""Attention on cards before compute capability 8.0: the program agrees with the trace of the modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_checkpoint_every import program_bytes
from test_trained_layers import scenario_of

from measure.trace.traced_job import trace_events
from planner.allocator.documents.summary import summarize

JOBS: dict[str, dict[str, Any]] = {
    "groups": {"method": "lora", "precision": "fp16-mixed"},
    "groups, several samples": {"method": "full", "precision": "fp16-mixed", "batch": 3},
    "groups in bf16": {"method": "lora", "precision": "bf16-mixed"},
    "with a mask": {"method": "lora", "precision": "fp16-mixed", "batch": 2, "tokens_per_sample": 300},
    "checkpointed": {"method": "qlora", "precision": "fp16-mixed", "gradient_checkpointing": True},
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", JOBS)
def test_program_and_trace_agree(name: str, tmp_path: Path) -> None:
    """Allocated peaks of a model whose heads share keys, within 0.5 %."""
    scenario = scenario_of("llama-3.1-8b", tmp_path, 2, gpu="t4", seq=1024, **JOBS[name])
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.005)


def test_a_card_without_flash_makes_all_scores(tmp_path: Path) -> None:
    """The same job keeps more on a T4 than on an A100, by the scores of its layers in fp32."""
    needs = [
        program_bytes(
            scenario_of("llama-3.1-8b", tmp_path, 2, gpu=gpu, seq=2048, method="lora", precision="fp16-mixed")
        )
        for gpu in ("t4", "a100-80-sxm")
    ]
    heads = scenario_of("llama-3.1-8b", tmp_path, 2).model.groups[0].block.attention.n_heads
    assert needs[0] - needs[1] > 2 * heads * 2048**2 * 4
