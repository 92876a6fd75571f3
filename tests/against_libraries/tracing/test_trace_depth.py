"""A few periods of layers stand for the whole depth:
on whole models of the catalog the peaks are those of every layer.
"""

from __future__ import annotations

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from measure.trace.traced_job import TraceOptions, trace_events
from planner.allocator.documents.summary import summarize
from tests.jobs import resolved, typed

pytestmark = pytest.mark.slow

# 16 layers that are all alike, 24 with tied tables, 26 that alternate between two kinds of attention.
JOBS = {
    "llama": {"model": "llama-3.2-1b", "method": "full", "optimizer": "adamw_torch"},
    "qwen": {"model": "qwen2.5-0.5b", "method": "lora", "gradient_checkpointing": "true"},
    "adafactor": {"model": "qwen2.5-0.5b", "method": "full", "optimizer": "adafactor"},
    "gemma": typed("--model gemma-2-2b --method qlora --attention eager --gradient-checkpointing true"),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_trace_of_a_prefix_equals_that_of_every_layer(name: str) -> None:
    """Exactly the same peaks in every phase, allocated and reserved, the same terms at each,
    and as many events.
    """
    case = resolved({**JOBS[name], "gpu": "a100-80gb", "seq": "512", "batch": "2"})
    every = summarize(trace_events(case, TraceOptions(all_layers=True)))
    repeated = summarize(trace_events(case))
    assert repeated.n_events == every.n_events
    assert [each.peaks for each in repeated.phases] == [each.peaks for each in every.phases]
    assert [each.at_peak.terms for each in repeated.phases] == [each.at_peak.terms for each in every.phases]
    assert (repeated.peak.op, repeated.peak.module) == (every.peak.op, every.peak.module)
