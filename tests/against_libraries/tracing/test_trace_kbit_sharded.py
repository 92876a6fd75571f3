"""4-bit bases under FSDP2 and ZeRO-3: what of them is divided, gathered and expanded on one rank, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")
import_or_skip("bitsandbytes")

from scenarios import Setup
from tiny_traces import SHALLOW, small_config, small_scenario

from measure.trace.labels import to_events
from measure.trace.traced_job import TraceOptions, sharded_records
from planner.allocator.events import AllocEvent
from planner.allocator.replay import replay
from planner.domain.recipes.recipe import Batch, Dtype, Numerics
from planner.domain.recipes.sharding import ShardingName
from planner.domain.scenario import Scenario

LAYERS, WORLD, RANK = 6, 2, 4
WIDTH, INNER, ROWS = SHALLOW["hidden_size"], SHALLOW["intermediate_size"], SHALLOW["vocab_size"]
MATRICES = (4 * WIDTH * WIDTH, 3 * WIDTH * INNER)
"""Elements of a layer's matrices of attention, with as many key heads as heads, and of its MLP."""
PACKED = sum(MATRICES) // 2 * LAYERS
ADAPTERS = LAYERS * RANK * (4 * 2 * WIDTH + 3 * (WIDTH + INNER))


def scenario_of(sharding: ShardingName, storage: Dtype | None) -> Scenario:
    """QLoRA of a small model over two processes."""
    numerics = Numerics("bf16", "bf16-mixed", "nf4", True, storage)
    setup = Setup(rank=RANK, sharding=sharding, world=WORLD, numerics=numerics, optimizer="adamw_torch")
    base = small_scenario("llama-mha", setup, layers=LAYERS)
    return replace(base, recipe=replace(base.recipe, batch=Batch(1, 1, 32, "packed", 32)))


def events_of(case: Scenario, options: TraceOptions | None = None) -> list[AllocEvent]:
    """Its events."""
    return to_events(
        sharded_records(case, small_config("llama-mha", case, layers=LAYERS), options or TraceOptions())
    )


def held(events: list[AllocEvent], phase: str, *terms: str) -> int:
    """Bytes of ``terms`` when ``phase`` begins."""
    live: dict[int, int] = {}
    for each in events[: next(index for index, each in enumerate(events) if each.phase == phase)]:
        if each.term in terms:
            live.update({each.block: each.n_bytes}) if each.action == "alloc" else live.pop(each.block)
    return sum(live.values())


NORMS = (2 * LAYERS + 1) * WIDTH
TABLES = 2 * ROWS * WIDTH
ROTARY_BYTES = 2 * 4 * WIDTH // SHALLOW["num_attention_heads"] // 2
"""Two fp32 buffers of frequencies, which nobody divides."""


def test_fsdp_divides_bytes_that_are_stored_as_floats() -> None:
    """Half of the packed bytes, of tables and norms in fp32 as PEFT prepares them, and of adapters,
    which nobody widens.
    """
    events = events_of(scenario_of("fsdp", "bf16"))
    assert held(events, "forward", "weights") == (PACKED + 4 * (TABLES + NORMS)) // WORLD + ROTARY_BYTES
    assert held(events, "forward", "adapters") == 4 * ADAPTERS // WORLD
    layer = [
        each
        for each in events
        if each.op == "unsharded parameter" and "layers.3.mlp.down_proj.base_layer" in each.module
    ]
    assert not layer, "whole parameters belong to their unit"
    whole = {each.n_bytes for each in events if each.op == "unsharded parameter"}
    assert {WIDTH * WIDTH // 2, WIDTH * INNER // 2} <= whole, "packed bytes travel packed"
    assert WIDTH * INNER * 2 not in whole
    expanded = {each.n_bytes for each in events if each.term == "dequantization" and each.phase == "backward"}
    assert WIDTH * INNER * 2 in expanded


def test_fsdp_leaves_plain_bytes_whole() -> None:
    """What is stored as bytes stays whole on every GPU, as accelerate leaves it;
    scales are whole in any case.
    """
    events, divided = events_of(scenario_of("fsdp", None)), events_of(scenario_of("fsdp", "bf16"))
    assert held(events, "forward", "weights") == PACKED + 4 * (TABLES + NORMS) // WORLD + ROTARY_BYTES
    scales = held(events, "forward", "quantization_constants")
    assert scales == held(divided, "forward", "quantization_constants") > sum(MATRICES) * LAYERS // 64


def test_the_whole_model_is_there_before_it_is_divided() -> None:
    """bitsandbytes quantises on the GPU, so loading holds the whole 4-bit model."""
    events = events_of(scenario_of("fsdp", "bf16"))
    live = most = 0
    for each in events:
        if each.phase == "load":
            live += each.n_bytes if each.action == "alloc" else -each.n_bytes
            most = max(most, live)
    assert most > PACKED + 4 * (TABLES + NORMS)


def test_zero_3_casts_a_model_that_it_finds_whole() -> None:
    """Parts of packed bytes and of 16-bit tables; adapters are cast too,
    because no ``zero.Init`` was there to leave them.
    """
    events = events_of(scenario_of("zero3", "bf16"))
    parts = {each.n_bytes for each in events if each.op == "ds_tensor"}
    assert {WIDTH * INNER // 2 // WORLD, ROWS * WIDTH * 2 // WORLD} <= parts
    assert held(events, "forward", "adapters") == 2 * ADAPTERS // WORLD
    assert held(events, "forward", "weights") == (PACKED + 2 * (TABLES + NORMS)) // WORLD + ROTARY_BYTES


@pytest.mark.every(2)
@pytest.mark.parametrize("sharding", ["fsdp", "zero3"])
def test_repeated_periods_equal_all_layers(sharding: ShardingName) -> None:
    """A trace of a few layers gives the same peaks as one of all layers, and as many events."""
    case = scenario_of(sharding, "bf16")
    every, repeated = events_of(case, TraceOptions(all_layers=True)), events_of(case)
    assert replay(repeated).phases == replay(every).phases
    assert len(repeated) == len(every)
