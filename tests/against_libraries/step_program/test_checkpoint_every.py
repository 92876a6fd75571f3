"""Checkpointing of every n-th layer: the trace does what Transformers does,
and the program says what the trace finds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matrix.models import small_fields, text_fields

from tests.extras import import_or_skip

import_or_skip("torch")
import_or_skip("peft")

from measure.trace.build import make_config
from measure.trace.traced_job import TraceOptions, trace_events, trace_records
from planner.allocator.documents.summary import summarize
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.replayed import replayed
from planner.program.job import job_of
from tests.jobs import resolved

LAYERS = 13
MODELS = ("llama-3.1-8b", "gpt-neox-20b", "qwen3-8b")


def scenario_of(model: str, folder: Path, **flags: Any) -> Scenario:
    """A job on a scaled-down model of 13 layers."""
    fields = small_fields(text_fields(model)) | {"num_hidden_layers": LAYERS}
    path = folder / f"{model}.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    said = {
        "model": str(path),
        "gpu": "a100-80gb",
        "seq": 1024,
        "batch": 2,
        "gradient_checkpointing": True,
        **flags,
    }
    return resolved(said)


def program_bytes(scenario: Scenario) -> int:
    """Allocated peak of the program."""
    return max(each.allocated_bytes for each in replayed(job_of(scenario, Coefficients())).phases)


@pytest.mark.every(8)
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("every", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_program_and_trace_agree(every: int, model: str, method: str, tmp_path: Path) -> None:
    """The allocated peaks are within 0.5 %, with layers 0, n, 2n, ... run again and the others kept."""
    scenario = scenario_of(model, tmp_path, method=method, checkpoint_every=every)
    trace = summarize(trace_events(scenario)).allocated_peak_bytes
    assert program_bytes(scenario) == pytest.approx(trace, rel=0.005)


@pytest.mark.parametrize("every", [2, 3, LAYERS])
def test_memory_lies_between_all_and_none(every: int, tmp_path: Path) -> None:
    """Fewer layers that run again need more memory than all of them, and less than none."""
    sizes = [
        program_bytes(scenario_of("llama-3.1-8b", tmp_path, method="lora", **flags))
        for flags in ({"checkpoint_every": 1}, {"checkpoint_every": every}, {"gradient_checkpointing": False})
    ]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


def test_the_layers_are_those_that_transformers_chooses(tmp_path: Path) -> None:
    """Whatever version of Transformers runs, the layers that recompute are 0, n, 2n, ...:
    those that run forward in backward.
    """
    scenario = scenario_of("llama-3.1-8b", tmp_path, method="lora", checkpoint_every=3)
    records = trace_records(scenario, make_config(scenario), TraceOptions(all_layers=True))
    again = {each.block.place.layer for each in records if each.block.recomputed}
    assert again - {-1} == set(range(0, LAYERS, 3))


@pytest.mark.slow
def test_a_period_stands_for_all_layers(tmp_path: Path) -> None:
    """With every second layer run again a period has two layers,
    and the peak is that of a trace of all layers, exactly.
    """
    scenario = scenario_of("llama-3.1-8b", tmp_path, method="lora", checkpoint_every=2)
    short, whole = (
        summarize(trace_events(scenario, TraceOptions(all_layers=every))) for every in (False, True)
    )
    assert short.allocated_peak_bytes == whole.allocated_peak_bytes
    assert short.reserved_peak_bytes == whole.reserved_peak_bytes
