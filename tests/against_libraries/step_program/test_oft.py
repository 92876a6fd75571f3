"""OFT: the trace runs PEFT's own layers, and the program asks for the same memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_checkpoint_every import program_bytes
from test_trained_layers import assert_same_requests, scenario_of

from measure.trace.traced_job import trace_events
from planner.allocator.documents.summary import summarize
from planner.anatomy.adapted_matrices import oft_block_size
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.program.job import job_of
from planner.throughput.terms import pass_seconds
from planner.throughput.time_inputs import job_of as timed_job_of
from tests.jobs import typed

EQUAL: dict[str, dict[str, Any]] = {
    "kept": {"gradient_checkpointing": False},
    "two-projections": typed("--gradient-checkpointing --lora-targets q_proj;up_proj --oft-block-size 48"),
    "16-bit": {"gradient_checkpointing": True, "adapter_dtype": "bf16"},
    "over-4-bit": {"method": "qlora", "gradient_checkpointing": True},
    "over-int8": {"method": "int8", "gradient_checkpointing": True},
    "without-autocast": {"precision": "bf16", "load_dtype": "bf16", "adapter_dtype": "bf16"},
}


def oft(folder: Path, model: str = "llama-3.1-8b", **flags: Any) -> Scenario:
    """A scaled-down model of two layers with OFT,
    over what it was loaded as unless the flags say otherwise.
    """
    return scenario_of(model, folder, 2, **{"method": "lora", "oft_block_size": 32, "seq": 256, **flags})


@pytest.mark.every(4)
@pytest.mark.parametrize("name", EQUAL)
def test_every_request_is_that_of_the_real_modules(name: str, tmp_path: Path) -> None:
    """No request differs."""
    assert_same_requests(oft(tmp_path, **EQUAL[name]))


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "sizes", [{"seq": 128, "batch": 1}, {"seq": 1024, "batch": 4}, {"seq": 1024, "oft_block_size": 128}]
)
def test_the_peak_is_that_of_the_real_modules(sizes: dict[str, Any], tmp_path: Path) -> None:
    """Allocated within 0.25 % at three sizes, of a model with biases."""
    scenario = oft(tmp_path, "qwen2.5-7b", gradient_checkpointing=True, **sizes)
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.0025)


def test_older_wrappers_of_quantised_bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the function of PEFT 0.18 to 0.20 in the place of this one, the trace still agrees."""
    from peft.tuners.oft.layer import Linear

    monkeypatch.setattr(Linear, "forward", lambda layer, x: layer.base_layer(layer.oft_R["default"](x)))
    assert_same_requests(oft(tmp_path, method="qlora", gradient_checkpointing=True, switches=("oft=apart",)))


def test_parameters_and_time(tmp_path: Path) -> None:
    """``in (b - 1) / 2`` numbers for each matrix; larger blocks take longer."""
    scenarios = [oft(tmp_path, oft_block_size=size) for size in (32, 128)]
    inputs = sum(
        group.count * each.in_features for group in scenarios[0].model.groups for each in group.block.linears
    )
    counts = [job_of(each, Coefficients()).adapter_params for each in scenarios]
    assert counts == [inputs * 31 / 2, inputs * 127 / 2]
    jobs = [timed_job_of(each, Coefficients()) for each in scenarios]
    assert [job.own.trained for job in jobs if job] == counts
    seconds = [float(pass_seconds(job, "training")["adapters"]) for job in jobs if job]
    assert 0 < seconds[0] < seconds[1]


@pytest.mark.parametrize(
    ("in_features", "said", "size"), [(4096, 32, 32), (1000, 48, 50), (60, 16, 15), (64, 100, 64)]
)
def test_the_nearest_size_that_divides(in_features: int, said: int, size: int) -> None:
    """PEFT takes the divisor below the size or above it, whichever is nearer, and the lower of two."""
    assert oft_block_size(in_features, said) == size
