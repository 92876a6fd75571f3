"""The trace of one rank under FSDP2: shards against two real processes, and what is gathered when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.extras import import_or_skip

import_or_skip("peft")

import transformers
from scenarios import Setup, scenario
from tiny_traces import small_config, small_scenario

from measure.trace.labels import to_events
from measure.trace.traced_job import TraceOptions, sharded_records
from planner.allocator.events import AllocEvent
from planner.allocator.replay import replay
from planner.domain.recipes.recipe import Batch
from planner.domain.scenario import Scenario

# Odd sizes, so that shards are padded.
MODEL = {
    "model_type": "llama", "hidden_size": 68, "intermediate_size": 175, "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 321, "tie_word_embeddings": False,
}  # fmt: skip
RANKS = (0, 3)
LAYERS = 6
LIMIT_S = 300


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """What each of two real processes holds, by LoRA rank."""
    out = tmp_path_factory.mktemp("fsdp")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [
        str(Path(__file__).parents[1] / "fsdp_worker.py"),
        "--model",
        json.dumps(MODEL),
        "--out",
        str(out),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [*command, "--ranks", json.dumps(RANKS)]
    run = subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if run.returncode:
        pytest.fail(f"the two processes failed\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
    return [json.loads((out / f"rank{index}.json").read_text()) for index in range(2)]


def traced(rank: int) -> list[AllocEvent]:
    """The events of the same job."""
    case = scenario(MODEL, Setup(sharding="fsdp", world=2, mixed=True, optimizer="adamw_torch", rank=rank))
    config = transformers.AutoConfig.for_model(**MODEL)
    config._attn_implementation, config.use_cache = "sdpa", False
    return to_events(sharded_records(case, config))


def live(events: list[AllocEvent], names: set[str], before_phase: str) -> int:
    """Bytes of blocks of these names when ``before_phase`` begins."""
    held: dict[int, int] = {}
    for each in events[: next(index for index, each in enumerate(events) if each.phase == before_phase)]:
        if each.op in names:
            held.update({each.block: each.n_bytes}) if each.action == "alloc" else held.pop(each.block)
    return sum(held.values())


@pytest.mark.real
@pytest.mark.parametrize("rank", RANKS)
def test_shards_gradients_and_states_are_those_of_real_fully_shard(rank: int, reports: list[Any]) -> None:
    """To the byte, padding of odd sizes included: shards, reduced gradients, and the optimizer's states."""
    real = reports[0][str(rank)]
    assert real["class"].startswith("FSDP")
    events = traced(rank)
    assert live(events, {"shard"}, "forward") == real["shards"]
    assert live(events, {"sharded gradient"}, "optimizer_step") == real["gradients"]
    states = sum(
        each.n_bytes
        for each in events
        if each.action == "alloc" and each.term == "optimizer_states" and each.n_bytes > 4
    )
    assert states == real["states"]


def fsdp_llama(sharding: str = "fsdp", accum: int = 1) -> Scenario:
    """A small model over two processes."""
    setup = Setup(sharding=sharding, world=2, mixed=True, optimizer="adamw_torch")  # type: ignore[arg-type]
    base = small_scenario("llama", setup, layers=LAYERS)
    return replace(base, recipe=replace(base.recipe, batch=Batch(1, accum, 32, "packed", 32)))


def small_events(case: Scenario, options: TraceOptions | None = None) -> list[AllocEvent]:
    """Its events."""
    config = small_config("llama", case, layers=LAYERS)
    return to_events(sharded_records(case, config, options or TraceOptions()))


def test_repeated_periods_equal_all_layers() -> None:
    """A trace of a few layers gives the same peaks as one of all layers, and as many events."""
    every, repeated = small_events(fsdp_llama(), TraceOptions(all_layers=True)), small_events(fsdp_llama())
    assert replay(repeated).phases == replay(every).phases
    assert len(repeated) == len(every)


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_a_table_that_is_tied_is_loaded_by_both_of_its_names(model: str) -> None:
    """The second shard goes when all are in their places: accelerate loads a state dict, which has both."""
    case = small_scenario(model, Setup(sharding="fsdp", world=2, mixed=True), layers=LAYERS)
    events = to_events(sharded_records(case, small_config(model, case, layers=LAYERS)))
    again = [each.n_bytes for each in events if each.op == "shard by another name"]
    table = 4 * case.model.vocab_size * case.model.hidden_size
    assert again == ([table // 2] * 2 if case.model.tied else [])
    assert case.model.tied is (model == "gpt2")


def whole_layers(events: list[AllocEvent], phase: str) -> int:
    """Most bytes of gathered parameters at once in a phase."""
    now = most = 0
    for each in events:
        if each.op == "unsharded parameter":
            now += each.n_bytes if each.action == "alloc" else -each.n_bytes
        most = max(most, now if each.phase == phase else 0)
    return most


def test_layers_are_gathered_one_at_a_time() -> None:
    """Forward holds one layer beside what stays gathered; without resharding it holds the whole model."""
    case = fsdp_llama()
    one, every = (
        whole_layers(small_events(case), "forward"),
        whole_layers(small_events(fsdp_llama("fsdp-grad-op")), "forward"),
    )
    block, outside = case.model.groups[0].block, 2 * case.model.vocab_size * case.model.hidden_size
    layer = 2 * sum(linear.weight_count for linear in block.linears)
    assert layer <= one < layer + 2 * outside
    assert every > LAYERS * layer


def test_a_root_that_stays_whole_keeps_all_around_the_layers_and_the_last_one() -> None:
    """Two bytes of each of their parameters are whole when the backward begins,
    and a trace of a few layers is one of all.
    """
    plain = fsdp_llama()
    case = replace(plain, stack=replace(plain.stack, fsdp2_units="root_whole"))
    block, width = case.model.groups[0].block, case.model.hidden_size
    kept = (2 * case.model.vocab_size + 3) * width + sum(linear.weight_count for linear in block.linears)
    events = small_events(case)
    assert live(events, {"unsharded parameter"}, "backward") == 2 * kept
    assert replay(events).phases == replay(small_events(case, TraceOptions(all_layers=True))).phases


def test_gradients_stay_whole_between_micro_steps() -> None:
    """The Trainer reduces after the last micro-step only,
    so that whole 16-bit gradients wait on every rank before it.
    """
    case = fsdp_llama(accum=2)
    events = small_events(case)
    last = max(index for index, each in enumerate(events) if each.phase == "forward_2")
    held: dict[int, int] = {}
    for each in events[:last]:
        if each.term == "gradients":
            held.update({each.block: each.n_bytes}) if each.action == "alloc" else held.pop(each.block)
    whole = 2 * sum(linear.weight_count for linear in case.model.groups[0].block.linears) * LAYERS
    assert sum(held.values()) > whole


def test_gradients_are_reduced_as_the_stack_says() -> None:
    """In fp32 twice as many bytes are sent, and what arrives is kept; without ``no_sync``
    this is so in each micro-step.
    """
    case = fsdp_llama(accum=2)
    plain = _sent(small_events(case))
    wide = small_events(replace(case, stack=replace(case.stack, fsdp_reduces_fp32=True)))
    assert _sent(wide) == [2 * each for each in plain]
    assert "reduce_scatter_output" not in {each.op for each in wide}
    often = _sent(small_events(replace(case, stack=replace(case.stack, fsdp_no_sync="neither"))))
    # Two steps of two micro-steps: each reduces once, or in both.
    assert len(often) == 2 * len(plain)


def _sent(events: list[AllocEvent]) -> list[int]:
    sent = (each for each in events if each.op == "reduce_scatter_input" and each.action == "alloc")
    return [each.n_bytes for each in sent]


def test_offloaded_shards_come_and_go() -> None:
    """With offload nothing of shards, gradients and states stays on the GPU;
    shards are uploaded to be gathered.
    """
    case = fsdp_llama()
    case = replace(case, recipe=replace(case.recipe, offload="optimizer+params"))
    events = small_events(case)
    assert {"shard", "optimizer_states"}.isdisjoint(
        {each.op for each in events} | {each.term for each in events}
    )
    assert live(events, {"sharded gradient", "shard from the host", "all_gather_input"}, "forward_2") == 0
    assert any(each.op == "shard from the host" for each in events)
