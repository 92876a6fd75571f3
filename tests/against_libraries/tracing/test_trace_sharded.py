"""The trace of one rank of a sharded run: shards against real two-process DeepSpeed,
moments against hand-computed ones.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")
import_or_skip("deepspeed")

import torch
import transformers
from scenarios import Setup, scenario
from test_zero_shards import CASES, MODEL, RANK, Reports, prediction, reports  # noqa: F401, a fixture
from tiny_traces import small_config, small_scenario

from measure.trace.labels import to_events
from measure.trace.sharding.zero3_linear import _linear
from measure.trace.traced_job import TraceOptions, sharded_records
from planner.allocator.documents.summary import summarize
from planner.allocator.events import AllocEvent, allocated_timeline
from planner.allocator.replay import replay
from planner.catalog.stacks import load_stack
from planner.domain.recipes.recipe import Batch
from planner.domain.scenario import Scenario

LAYERS = 6
# A model that the engine finds whole is not what the Trainer makes under stage 3, so it is not traced.
TRACED = [name for name in CASES if name != "zero3-lora-whole-model"]


def events_of(case: Scenario) -> list[AllocEvent]:
    """The events of one rank of a run of the small model."""
    config = transformers.AutoConfig.for_model(**MODEL)
    config._attn_implementation, config.use_cache = case.recipe.attention, False
    return to_events(sharded_records(case, config))


def held(events: list[AllocEvent], term: str) -> int:
    """Bytes of a term at the end of the first optimizer step, as requested."""
    last = max(index for index, each in enumerate(events) if each.phase == "optimizer_step")
    live: dict[int, int] = {}
    for each in events[: last + 1]:
        if each.term == term:
            live.update({each.block: each.n_bytes}) if each.action == "alloc" else live.pop(each.block, None)
    return sum(live.values())


def whole_at_the_end(events: list[AllocEvent]) -> int:
    """Bytes of parameters that are whole when the last step is over."""
    live: dict[int, int] = {}
    for each in events:
        if each.op == "gathered parameter":
            live.update({each.block: each.n_bytes}) if each.action == "alloc" else live.pop(each.block, None)
    return sum(live.values())


@pytest.fixture(scope="module")
def traces() -> dict[str, list[AllocEvent]]:
    """The trace of every case that the two real processes ran, with buckets of the same size."""
    return {name: events_of(prediction(name).scenario) for name in TRACED}


@pytest.mark.real
@pytest.mark.parametrize("name", TRACED)
def test_shards_are_those_of_real_deepspeed(
    name: str,
    traces: dict[str, list[AllocEvent]],
    reports: Reports,  # noqa: F811
) -> None:
    """fp32 masters, optimizer states and the flat weights are to the byte what the last of two real processes
    holds.
    """
    events, real = traces[name], reports[name][-1]
    assert held(events, "master_weights") == real["master"]
    # torch's own counters of steps, which are not elements of a shard
    steps = 4 * 2 * len(real["trained_dtypes"])
    assert 0 <= held(events, "optimizer_states") - real["states"] <= steps
    weights = held(events, "weights") + held(events, "adapters")
    assert 0 <= weights - real["trained"] - real["frozen"] < 4 * real["tensors"] + 64
    if CASES[name].stage == 3:
        assert (
            sum(each.n_bytes for each in events if each.op == "grad_partitions_flat_buffer")
            == real["gradients"]
        )
        whole = whole_at_the_end(events)
        assert 0 <= whole - real["whole"] < 4 * real["tensors"]


@pytest.mark.every(2)
@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_repeated_periods_equal_all_layers(stage: str) -> None:
    """Flat buffers grow with the depth, and still a trace of a few layers gives that of all of them."""
    case = sharded_llama(stage)
    config = small_config("llama", case, layers=LAYERS)
    every = to_events(sharded_records(case, config, TraceOptions(all_layers=True)))
    repeated = to_events(sharded_records(case, config))
    assert replay(repeated).phases == replay(every).phases
    assert len(repeated) == len(every)


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3", "fsdp", "fsdp1"])
def test_gradients_of_one_size_that_come_together_are_told_apart(stage: str) -> None:
    """Those of a norm's weight and bias: each is freed once, in a trace of a few layers as in one of all."""
    setup = Setup(sharding=stage, world=2, mixed=True, optimizer="adamw_torch")  # type: ignore[arg-type]
    case = small_scenario("gpt2", setup, layers=LAYERS)
    config = small_config("gpt2", case, layers=LAYERS)
    every = to_events(sharded_records(case, config, TraceOptions(all_layers=True)))
    assert replay(to_events(sharded_records(case, config))).phases == replay(every).phases


@pytest.mark.parametrize(("version", "width"), [("0.16.4", 2), ("0.19.8", 4)])
def test_stage_3_casts_adapters_where_the_version_of_deepspeed_does(version: str, width: int) -> None:
    """PEFT makes them in fp32, beside a base that ``zero.Init`` divides."""
    setup = Setup(sharding="zero3", world=2, mixed=True, optimizer="adamw_torch", rank=RANK)
    case = scenario(MODEL, setup)
    events = events_of(replace(case, stack=load_stack("hf-trainer@5", (("deepspeed", version),))))
    parts, masters = held(events, "adapters"), held(events, "master_weights")
    assert parts == masters * width // 4 > 0


def test_one_process_gathers_nothing_but_what_lies_on_the_host() -> None:
    """Stage 3 uses whole parameters where they are; from the host each is copied, without a flat buffer."""
    names = {}
    for offload in ("none", "optimizer+params"):
        case = sharded_llama("zero3", world=1)
        case = replace(case, recipe=replace(case.recipe, offload=offload))
        events = to_events(sharded_records(case, small_config("llama", case, layers=LAYERS)))
        names[offload] = {each.op for each in events if each.term == "gathered_parameters"}
    # Each is copied once for its hook, however many processes there are.
    hooked = "_allgather_params_sequential"
    assert names == {"none": {hooked}, "optimizer+params": {hooked, "partition from the host"}}


def sharded_llama(stage: str, accum: int = 1, rank: int = 0, world: int = 2) -> Scenario:
    """A small model over two processes, with buckets of one hidden size squared, as ``auto`` sets them."""
    setup = Setup(sharding=stage, world=world, mixed=True, optimizer="adamw_torch", rank=rank)  # type: ignore[arg-type]
    base = small_scenario("llama", setup, layers=LAYERS)
    batch = Batch(1, accum, 32, "packed", 32)
    return replace(
        base, recipe=replace(base.recipe, batch=batch), stack=replace(base.stack, zero12_bucket_elements=0)
    )


def test_stage_1_keeps_whole_gradients_between_micro_steps() -> None:
    """With accumulation stage 1 holds all gradients until the last micro-step,
    stage 2 this process's part from the first on.
    """
    sizes = {}
    for stage in ("zero1", "zero2"):
        case = sharded_llama(stage, accum=2)
        events = to_events(sharded_records(case, small_config("llama", case, layers=LAYERS)))
        moments = {each.peaks.phase: each.at_peak.terms for each in summarize(events).phases}
        sizes[stage] = moments["forward_2"].get("gradients", 0)
    assert sizes["zero1"] > 1.9 * sizes["zero2"] > 0


@pytest.mark.parametrize(("version", "early"), [("0.16.4", True), ("0.19.8", False)])
def test_buckets_come_when_the_version_of_deepspeed_makes_them(version: str, early: bool) -> None:
    """Up to 0.18.2 before the loss runs backward, beside its logits; later at the first gradient.
    It goes at the end.
    """
    case = sharded_llama("zero2")
    case = replace(case, stack=load_stack("hf-trainer@5", (("deepspeed", version),)))
    events = to_events(sharded_records(case, small_config("llama", case, layers=LAYERS)))
    made = [index for index, each in enumerate(events) if each.op == "ipg_buffer" and each.action == "alloc"]
    loss = next(
        index for index, each in enumerate(events) if each.op == "aten._log_softmax_backward_data.default"
    )
    assert (made[0] < loss) is early
    assert len(made) == sum(each.op == "ipg_buffer" and each.action == "free" for each in events)


def test_offloaded_states_leave_the_gpu() -> None:
    """With the optimizer on the host no master, state or gradient partition is on the GPU,
    but one staging buffer is.
    """
    case = sharded_llama("zero2")
    offloaded = replace(case, recipe=replace(case.recipe, offload="optimizer"))
    events = to_events(sharded_records(offloaded, small_config("llama", offloaded, layers=LAYERS)))
    assert {"master_weights", "optimizer_states"}.isdisjoint({each.term for each in events})
    names = {each.op for each in events if each.term == "gradient_buckets"}
    assert "temp_grad_buffer_for_gpu_offload" in names
    assert "grads_in_partition" not in {each.op for each in events}


@pytest.mark.parametrize(
    ("stage", "one", "before"),
    [
        ("zero1", False, ["bit16_groups_flat"] * 2),
        ("zero2", True, ["bit16_groups_flat"]),
        ("zero3", False, ["lp_param_buffer"]),
    ],
)
def test_the_cache_is_emptied_where_deepspeed_does(stage: str, one: bool, before: list[str]) -> None:
    """Before each group of the optimizer is flattened, or before the parts of all move into one buffer."""
    case = sharded_llama(stage)
    events = events_of(replace(case, stack=replace(case.stack, one_optimizer_group=one, runs_trainer=False)))
    emptied = [index for index, each in enumerate(events) if each.action == "empty_cache"]
    assert [events[index + 1].op for index in emptied] == before
    assert {events[index].phase for index in emptied} == {"load"}


def test_the_trainer_empties_the_cache_before_zero3_is_made() -> None:
    """``accelerator.free_memory``, before what is not divided yet is divided."""
    events = events_of(sharded_llama("zero3"))
    first = next(index for index, each in enumerate(events) if each.action == "empty_cache")
    assert events[first + 1].op == "ds_tensor"


@pytest.mark.parametrize(("on_card", "copies"), [(True, 2), (False, 1)])
def test_weights_are_flattened_beside_themselves_or_on_the_host(on_card: bool, copies: int) -> None:
    """Until DeepSpeed 0.19 they leave the card before their buffer comes."""
    case = sharded_llama("zero2")
    events = events_of(replace(case, stack=replace(case.stack, zero12_flattens_on_gpu=on_card)))
    flat = next(index for index, each in enumerate(events) if each.op == "bit16_groups_flat")
    held_then, n_bytes = allocated_timeline(events)[flat], events[flat].n_bytes
    # Vectors are a group of their own, which comes after.
    assert held_then == pytest.approx(copies * n_bytes, rel=0.01)


def test_deepspeed_empties_the_cache_at_these_places() -> None:
    """In its own code: between the loop over groups and the flat buffer, and while parts are on the host."""
    stages: Any = import_or_skip("deepspeed.runtime.zero.stage_1_and_2")
    made = inspect.getsource(stages.DeepSpeedZeroOptimizer.__init__)
    words = ("in enumerate(self.optimizer.param_groups)", "empty_cache()", "bit16_groups_flat.append(")
    loop, first, flat = (made.index(each) for each in words)
    assert loop < first < flat
    source = inspect.getsource(import_or_skip("deepspeed.runtime.zero.utils").defragment)
    assert source.index("torch.empty(0") < source.index("empty_cache()") < source.index("cpu_buffer.to(")


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_linear_of_zero3_is_that_of_deepspeed(shape: tuple[int, ...], has_bias: bool) -> None:
    """The same values and gradients, and the same saved, also where the weight is frozen."""
    its: Any = import_or_skip("deepspeed.runtime.zero.linear")
    x, weight, bias = (torch.randn(*each) for each in (shape, (4, 8), (4,)))
    x.requires_grad_()
    for trained in (True, False):
        weight.requires_grad_(trained)
        seen = []
        for function in (its.zero3_linear_wrap, _linear):
            out = function(x, weight, bias if has_bias else None)
            given = [x, weight] if trained else [x]
            saved = [None if each is None else each.shape for each in out.grad_fn.saved_tensors]
            seen.append((saved, out, *torch.autograd.grad(out.square().sum(), given)))
        assert seen[0][0] == seen[1][0]
        for one, other in zip(seen[0][1:], seen[1][1:], strict=True):
            torch.testing.assert_close(one, other)


def test_every_block_is_freed_at_most_once_and_lives_before() -> None:
    """The stream that a runtime writes is one that an allocator accepts,
    for LoRA with dropout and accumulation too.
    """
    setup = Setup(sharding="zero2", world=3, mixed=True, optimizer="adamw_torch", rank=RANK, dropout=0.1)
    case = scenario(MODEL, setup)
    batch = Batch(1, 4, 32, "packed", 32)
    case = replace(case, recipe=replace(case.recipe, batch=batch))
    assert replay(events_of(case)).outcome != "out_of_memory"
