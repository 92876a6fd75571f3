"""Host memory of a traced step: against real two-process DeepSpeed, by hand, and beside the closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")
import_or_skip("deepspeed")

import transformers
from scenarios import Setup, scenario
from test_trace_fsdp import fsdp_llama
from test_zero_shards import MODEL, OFFLOADED, Reports, reports  # noqa: F401, a fixture
from tiny_traces import SHALLOW, small_config, small_scenario

from measure.trace.host_records import HostMemory, host_memory
from measure.trace.record import Place, Record, TracedBlock
from measure.trace.traced_job import TraceOptions, host_of, sharded_records, trace_records
from planner.domain.recipes.recipe import Batch
from planner.domain.recipes.sharding import ShardingName
from planner.domain.scenario import Scenario

LAYERS = 6
WORLD = 2


def offloaded(name: str) -> Scenario:
    """The scenario of a run of the two processes,
    with masters and buffers pinned as DeepSpeed 0.19 pins them.
    """
    case = OFFLOADED[name]
    sharding: ShardingName = "zero2" if case.stage == 2 else "zero3"
    made = scenario(
        MODEL, Setup(rank=case.rank, sharding=sharding, world=WORLD, mixed=True, optimizer="adamw_torch")
    )
    batch = Batch(1, case.accum, 32, "packed", 32)
    return replace(made, recipe=replace(made.recipe, batch=batch, offload=case.offload))


def records_of(case: Scenario) -> list[Record]:
    """The records of one rank."""
    config = transformers.AutoConfig.for_model(**MODEL)
    config._attn_implementation, config.use_cache = case.recipe.attention, False
    return sharded_records(case, config)


def held(records: list[Record]) -> dict[str, int]:
    """Bytes of host memory that is held at the end, by the runtime's own names; pinned memory unrounded."""
    found: dict[str, int] = {}
    for record in records:
        if record.block.host_name is not None:
            size = record.block.n_bytes if record.alloc else -record.block.n_bytes
            found[record.block.op] = found.get(record.block.op, 0) + size
    return {name: size for name, size in found.items() if size}


@pytest.mark.real
@pytest.mark.parametrize("name", OFFLOADED)
def test_host_buffers_are_those_of_real_deepspeed(name: str, reports: Reports) -> None:  # noqa: F811
    """Masters, gradients, staging and upload buffers and parts of parameters are to the byte those of the
    last process.
    """
    real = reports[name][-1]
    ours = held(records_of(offloaded(name)))
    states = sum(size for what, size in ours.items() if what.startswith("aten."))
    assert {what: size for what, size in ours.items() if not what.startswith("aten.")} == {
        what: size for what, size in real["host"].items() if size
    }
    assert states == real["states"]


def memory(case: Scenario, **options: Any) -> HostMemory:
    """Host memory of a small model's step."""
    config = small_config("llama", case, layers=LAYERS)
    run = sharded_records if case.recipe.sharding.communicates else trace_records
    return host_of(run(case, config, TraceOptions(**options)), case)


def test_pinned_memory_is_rounded_and_freed_blocks_are_kept() -> None:
    """Three pinned bytes take four; what is freed is cached, and serves the next request of its size."""
    blocks = [
        TracedBlock(index, size, Place("load", 0), "b", "", stream=-2) for index, size in enumerate((3, 4, 5))
    ]
    for block in blocks:
        block.host_name = "offloaded_gradients"
    first, second, third = blocks
    training = Place("forward", 0)
    records = [
        Record(True, first, first.place),
        Record(False, first, first.place),
        Record(True, second, second.place),
    ]
    records += [Record(True, third, training), Record(False, third, training)]
    found = host_memory(records, rounds_pinned=True, processes=2)
    assert [(each.name, each.kind, each.requested_bytes, each.n_bytes) for each in found.holdings] == [
        ("offloaded_gradients", "pinned", 9, 12)
    ]
    assert (found.per_process_bytes, found.per_node_bytes, found.setup_peak_bytes) == (12, 24, 12)
    exact = host_memory(records, rounds_pinned=False, processes=1)
    # Without rounding three bytes that were freed do not serve four.
    assert {each.name: each.n_bytes for each in exact.holdings} == {
        "offloaded_gradients": 9,
        "pinned_cache": 3,
    }


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


def test_fsdp_keeps_shards_and_gradients_pinned_and_states_pageable() -> None:
    """Each shard and its gradient are blocks of their own, rounded up; two states stay pageable;
    no 16-bit copy is kept.
    """
    case = fsdp_llama()
    found = memory(replace(case, recipe=replace(case.recipe, offload="optimizer+params")))
    sizes = {(each.name, each.kind): each for each in found.holdings}
    assert set(sizes) == {
        ("offloaded_optimizer", "pinned"),
        ("offloaded_optimizer", "pageable"),
        ("offloaded_gradients", "pinned"),
    }
    shards, states = sizes["offloaded_optimizer", "pinned"], sizes["offloaded_optimizer", "pageable"]
    assert sizes["offloaded_gradients", "pinned"].requested_bytes == shards.requested_bytes
    # a step count for each tensor
    assert 0 <= states.n_bytes - 2 * shards.requested_bytes <= 4 * 9 * (LAYERS + 1)
    assert shards.n_bytes > shards.requested_bytes


def test_a_job_without_offload_keeps_nothing_there() -> None:
    """What is on the card alone has no host memory."""
    assert memory(fsdp_llama()).holdings == ()
