"""What FSDP1 gathers together, and the moments of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

from measure.trace.record import Record
from measure.trace.sharding.marks import MARK
from measure.trace.traced_job import TraceOptions, trace_records
from tests.against_libraries.scenarios import Setup
from tests.measure.trace.tiny import llama

FIRST, SECOND = "model.layers.0", "model.layers.1"
Moments = list[tuple[str, str]]


def marks(setup: Setup) -> Moments:
    """Moments and modules of the first micro-step, without those of gradients."""
    records: list[Record] = trace_records(*llama(setup), TraceOptions(all_layers=True))
    return [
        (each.block.op.partition(" ")[0], each.block.module)
        for each in records
        if each.alloc
        and each.block.role == MARK
        and each.place.micro_step == 0
        and not each.block.op.startswith("gradient")
    ]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_units_begin_and_end_outside_of_checkpoints(checkpointing: bool) -> None:
    """What a checkpoint runs again is not gathered again; a layer ends before the one below it begins."""
    found = marks(Setup(sharding="fsdp1", world=2, mixed=True, checkpointing=checkpointing))
    assert [each for each in found if each[0] != "host_waits"] == [
        ("before_forward", ""),
        ("before_forward", FIRST),
        ("after_forward", FIRST),
        ("before_forward", SECOND),
        ("after_forward", SECOND),
        ("after_forward", ""),
        ("before_backward", ""),
        ("before_backward", SECOND),
        ("after_backward", SECOND),
        ("before_backward", FIRST),
        ("after_backward", FIRST),
        ("after_backward", ""),
        ("end_of_backward", ""),
    ]


def test_frozen_layers_end_after_the_one_below_has_begun() -> None:
    """Their hook is on the input's gradient, behind that of the unit that made the input."""
    of_peft = marks(Setup(sharding="fsdp1", world=2, mixed=True, rank=4))
    found = [(moment, module.removeprefix("base_model.model.")) for moment, module in of_peft]
    assert found.index(("before_backward", FIRST)) < found.index(("after_backward", SECOND))
    adapters = [module for moment, module in found if moment == "before_forward" and "lora_" in module]
    assert len(adapters) == 2 * 2 * 7


def test_adapters_are_asked_for_their_dtype_while_they_are_divided() -> None:
    """The input of each ``lora_A`` becomes fp32, and 16-bit again inside."""
    records: list[Any] = trace_records(
        *llama(Setup(sharding="fsdp1", world=2, mixed=True, rank=4)), TraceOptions(all_layers=True)
    )
    casts = [
        each.block
        for each in records
        if each.alloc and each.block.op == "aten._to_copy.default" and "lora_A" in each.block.module
    ]
    assert len([each for each in casts if each.place.stage == "forward" and each.place.micro_step == 0]) == 14
