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
from measure.trace.expansion import repeat
from measure.trace.labels import to_events
from measure.trace.period import Irregular, Pattern, find_pattern
from measure.trace.record import Place, Record, TracedBlock
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


def test_the_pattern_of_alternating_layers_is_found() -> None:
    """A dense first layer is prefix, layers that alternate make one period,
    and the prefix takes what is left over.
    """
    assert find_pattern(["a"] * 12, "layers") == Pattern(0, 1, 12, "layers")
    assert find_pattern(["a", "b"] * 6, "layers") == Pattern(0, 2, 6, "layers")
    assert find_pattern(["dense", *["moe"] * 9], "layers") == Pattern(1, 1, 9, "layers")
    assert find_pattern([*["s", "s", "f"] * 6, "s"], "layers") == Pattern(1, 3, 6, "layers")
    assert find_pattern(["a", "b", "c", "d"], "layers").periods == 0


def test_layers_that_differ_are_not_repeated() -> None:
    """When one of the inner periods allocates something else,
    the records are refused rather than repeated.
    """
    blocks = [
        TracedBlock(i, 512 * (2 if i == 2 else 1), Place("forward", 0, i), "op", f"layers.{i}")
        for i in range(4)
    ]
    records = [Record(True, block, block.place) for block in blocks]
    with pytest.raises(Irregular, match="forward"):
        repeat(records, Pattern(0, 1, 8, "layers"))


def test_blocks_of_neighbours_move_along() -> None:
    """A block that the next layer frees is freed by the next layer of the whole model too."""
    records: list[Record] = []
    previous: TracedBlock | None = None
    for layer in range(4):
        block = TracedBlock(layer, 512, Place("forward", 0, layer), "op", f"layers.{layer}")
        records.append(Record(True, block, block.place))
        if previous is not None:
            records.append(Record(False, previous, block.place))
        previous = block
    whole = repeat(records, Pattern(0, 1, 10, "layers"))
    assert [(each.alloc, each.block.module, each.place.layer) for each in whole if not each.alloc] == [
        (False, f"layers.{layer - 1}", layer) for layer in range(1, 10)
    ]
