"""Mixtures whose experts the CPU computes: peaks of the step program against the dry run of modules that do
the same on the card.
"""

from __future__ import annotations

import pytest

from planner.domain.scenario import Scenario
from planner.predicting import estimate
from tests.extras import import_or_skip
from tests.jobs import resolved

# Trained as a pass of its own, which the trace leaves out.
UNTRACED = ("eval",)


def job(model: str) -> Scenario:
    """LoRA on all that is left on the card, in bf16, checkpointed."""
    flags: dict[str, object] = {
        "model": model, "method": "lora", "lora_targets": "all-linear", "gpu": "a100-80gb",
        "stack": "hf-trainer@5", "seq": 512, "batch": 1, "gradient_checkpointing": True,
        "checkpoint_reentrant": False, "switches": ("host_experts=bf16",),
    }  # fmt: skip
    return resolved(flags)


@pytest.mark.parametrize(
    "model",
    [
        "qwen3-30b-a3b",
        pytest.param("qwen3.5-35b-a3b", marks=pytest.mark.slow),
        pytest.param("deepseek-v3", marks=pytest.mark.slow),
    ],
)
def test_peaks_are_those_of_the_modules(model: str) -> None:
    """What is allocated in each phase, and what is reserved in all: within a thousandth, and a hundredth."""
    import_or_skip("torch")
    from host_experts_trace import trace_on_host

    from planner.allocator.documents.summary import summarize

    scenario = job(model)
    summary = summarize(trace_on_host(scenario))
    memory = estimate(scenario).memory
    program = {each.phase: each.allocated_bytes for each in memory.phases}
    traced = {each.peaks.phase: each.peaks.allocated_bytes for each in summary.phases}
    assert set(program) - set(traced) <= set(UNTRACED)
    assert traced == pytest.approx({phase: program[phase] for phase in traced}, rel=0.001)
    assert memory.reserved_peak_bytes == pytest.approx(summary.reserved_peak_bytes, rel=0.01)
