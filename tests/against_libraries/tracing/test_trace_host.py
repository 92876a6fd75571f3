"""Host memory of a traced step: the states that an optimizer keeps in pages."""

from __future__ import annotations

from typing import Any

from tests.extras import import_or_skip

import_or_skip("peft")

from scenarios import Setup
from tiny_traces import SHALLOW, small_config, small_scenario

from measure.trace.host_records import HostMemory, host_memory
from measure.trace.traced_job import TraceOptions, trace_records
from planner.domain.scenario import Scenario

LAYERS = 6


def memory(case: Scenario, **options: Any) -> HostMemory:
    """Host memory of a small model's step."""
    return host_memory(
        trace_records(case, small_config("llama", case, layers=LAYERS), TraceOptions(**options))
    )


def test_paged_states_are_host_memory_of_every_layer() -> None:
    """Two fp32 numbers per element of every large matrix, also where a few layers stand for all."""
    case = small_scenario("llama", Setup(optimizer="paged_adamw_32bit"), layers=LAYERS)
    every, repeated = memory(case, all_layers=True), memory(case)
    assert repeated == every
    (states,) = repeated.holdings
    assert (states.name, states.kind) == ("paged_optimizer", "managed")
    width, inner, rows = SHALLOW["hidden_size"], SHALLOW["intermediate_size"], SHALLOW["vocab_size"]
    # The matrices of attention and norms have fewer than 100,000 elements.
    large = LAYERS * 3 * width * inner + 2 * rows * width
    assert states.n_bytes == 8 * large


def test_a_job_whose_states_are_on_the_card_keeps_nothing_there() -> None:
    """What is on the card alone has no host memory."""
    assert memory(small_scenario("llama", Setup(), layers=LAYERS)).holdings == ()
