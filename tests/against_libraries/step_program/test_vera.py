"""VeRA: the trace runs PEFT's own layers, and the program asks for the same memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_checkpoint_every import program_bytes
from test_oft import EQUAL as OF_OFT
from test_trained_layers import assert_same_requests, scenario_of

from measure.trace.traced_job import trace_events
from planner.allocator.documents.summary import summarize
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.throughput.terms import pass_seconds
from planner.throughput.time_inputs import job_of as timed_job_of
from tests.jobs import typed

EQUAL: dict[str, dict[str, Any]] = {
    **{name: flags for name, flags in OF_OFT.items() if "oft_block_size" not in flags},
    "dropout": {"gradient_checkpointing": True, "lora_dropout": 0.1},
    "two-projections": typed("--gradient-checkpointing --lora-targets q_proj;up_proj --lora-rank 16"),
}


def vera(folder: Path, model: str = "llama-3.1-8b", **flags: Any) -> Scenario:
    """A scaled-down model of two layers with VeRA,
    over what it was loaded as unless the flags say otherwise.
    """
    return scenario_of(model, folder, 2, **{"method": "lora", "vera": True, "seq": 256, **flags})


@pytest.mark.every(4)
@pytest.mark.parametrize("name", EQUAL)
def test_every_request_is_that_of_the_real_modules(name: str, tmp_path: Path) -> None:
    """No request differs, and the peak is equal but for what nobody counts: less than 2 KiB each."""
    scenario = vera(tmp_path, **EQUAL[name])
    assert_same_requests(scenario)
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=5e-4)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "sizes", [{"seq": 128, "batch": 1}, {"seq": 1024, "batch": 4}, {"seq": 1024, "lora_rank": 64}]
)
def test_the_peak_is_that_of_the_real_modules(sizes: dict[str, Any], tmp_path: Path) -> None:
    """Allocated within 0.1 % at three sizes, of a model with biases."""
    scenario = vera(tmp_path, "qwen2.5-7b", gradient_checkpointing=True, **sizes)
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.001)


def test_parameters_and_time(tmp_path: Path) -> None:
    """``out + r`` numbers for each matrix; a larger rank takes longer."""
    scenarios = [vera(tmp_path, lora_rank=rank) for rank in (64, 256)]
    linears = [
        (group.count, each.out_features)
        for group in scenarios[0].model.groups
        for each in group.block.linears
    ]
    counts = [job_of(each, Coefficients()).adapter_params for each in scenarios]
    assert counts == [sum(count * (width + rank) for count, width in linears) for rank in (64, 256)]
    jobs = [timed_job_of(each, Coefficients()) for each in scenarios]
    assert [job.own.trained for job in jobs if job] == counts
    seconds = [float(pass_seconds(job, "training")["adapters"]) for job in jobs if job]
    assert 0 < seconds[0] < seconds[1]
