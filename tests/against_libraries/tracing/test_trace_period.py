"""A few periods of the layers stand for all of them: same events, same peaks as a trace of every layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from scenarios import Setup
from tiny_traces import small_config, small_scenario

from measure.trace import traced_job
from measure.trace.labels import to_events
from measure.trace.record import Record
from measure.trace.traced_job import TraceOptions, trace_records
from planner.allocator.replay import replay
from planner.domain.recipes.recipe import Numerics

LAYERS = 9
SETUPS = {
    "full": Setup(mixed=True),
    "reentrant": Setup(checkpointing=True, reentrant=True, optimizer="adamw_torch"),
    "lora": Setup(rank=4, dropout=0.1, mixed=True, optimizer="adamw_torch"),
    "checkpointed": Setup(rank=4, checkpointing=True, attention="eager"),
    "adafactor": Setup(optimizer="adafactor"),
    "8bit": Setup(optimizer="adamw_8bit"),
    "int8": Setup(rank=4, checkpointing=True, numerics=Numerics("bf16", "bf16-mixed", "int8")),
}


class _NotCaughtError(Exception):
    """In the place of an exception that must not be caught."""


def _contents(records: list[Record]) -> Counter[Hashable]:
    return Counter(
        (each.alloc, each.block.n_bytes, each.block.op, each.block.module, each.block.role, each.place)
        for each in records
    )


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("name", "setup"),
    [
        ("llama", "lora"),
        ("llama", "full"),
        ("gpt2-dropout", "checkpointed"),
        ("gemma", "reentrant"),
        ("llama", "int8"),
        ("llama", "adafactor"),
        ("gemma", "adafactor"),  # tied, so that a layer's matrix is the last of its group
        ("llama", "8bit"),
    ],
)
def test_repeated_periods_equal_all_layers(name: str, setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event is there as often, in the same place,
    and the allocator's peaks in each phase are the same.
    """
    # layers that do not repeat would be traced one by one
    monkeypatch.setattr(traced_job, "Irregular", _NotCaughtError)
    case = small_scenario(name, SETUPS[setup], layers=LAYERS)
    config = small_config(name, case, layers=LAYERS)
    every = trace_records(case, config, TraceOptions(all_layers=True))
    repeated = trace_records(case, config)
    assert _contents(repeated) == _contents(every)
    assert replay(to_events(repeated)).phases == replay(to_events(every)).phases
