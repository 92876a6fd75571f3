"""A runtime over records made by hand: a matrix, a vector, a block of the modules, and a gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.extras import import_or_skip

import_or_skip("torch")
import_or_skip("transformers")

from measure.trace.record import Place, Record, TracedBlock
from measure.trace.sharding.apply import apply_runtime
from planner.domain.recipes.sharding import ShardingName
from planner.domain.scenario import Scenario
from planner.errors import PlannerError
from tests.against_libraries.scenarios import Setup
from tests.measure.trace.sharding.made import gradient, loading, parameter
from tests.measure.trace.tiny import llama

MATRIX, VECTOR = parameter("weight", 6, 4), parameter("bias", 10)
GRADIENT = 50


def job(sharding: ShardingName = "zero2", grad_accum: int = 1) -> Scenario:
    """Two processes."""
    setup = Setup(sharding=sharding, world=2, mixed=True, optimizer="adamw_torch")
    case, _ = llama(setup)
    batch = replace(case.recipe.batch, grad_accum=grad_accum)
    return replace(case, recipe=replace(case.recipe, batch=batch))


def mark(number: int, what: str, place: Place, marked: TracedBlock | None = None) -> list[Record]:
    """A moment of the layer."""
    block = TracedBlock(number, 0, place, what, "layers.0", role="mark", marked=marked)
    return [Record(True, block, place), Record(False, block, place)]


def step(micro_step: int = 0, *, has_memory: bool = True) -> list[Record]:
    """Loading, and a backward in which the vector's gradient comes and the modules let go of it."""
    place = Place("backward", micro_step, 0)
    block = gradient(VECTOR, GRADIENT)
    records = [loading(MATRIX, 0), loading(VECTOR, 1)]
    records.append(Record(True, block, place))
    records += mark(60, "gradient bias", place, block if has_memory else None)
    records.append(Record(False, block, place))
    return [*records, *mark(61, "end_of_backward", Place("backward", micro_step))]


@pytest.mark.parametrize("sharding", ["zero2", "zero3", "fsdp"])
def test_a_gradient_is_freed_once_and_the_optimizer_steps_after_the_backward(sharding: ShardingName) -> None:
    """The runtime frees what the modules have let go of; the step is the last stage."""
    records = apply_runtime(step(), job(sharding))
    assert sum(not each.alloc and each.block.id == GRADIENT and not each.waits for each in records) <= 1
    stages = list(dict.fromkeys(each.place.stage for each in records))
    assert stages == ["load", "backward", "optimizer_step"]
    states = [each for each in records if each.alloc and each.block.role == "optimizer_states"]
    assert states
    assert {each.place.stage for each in states} == {"optimizer_step"}


@pytest.mark.parametrize(("micro_step", "steps"), [(0, False), (1, True), (2, False), (3, True)])
def test_with_accumulation_the_optimizer_waits_for_the_last_micro_step(micro_step: int, steps: bool) -> None:
    """Each first of two is followed by another."""
    records = apply_runtime(step(micro_step), job("zero3", grad_accum=2))
    assert ("optimizer_step" in {each.place.stage for each in records}) is steps


def test_a_gradient_without_memory_of_its_own_is_refused() -> None:
    """The sentence names the parameter."""
    with pytest.raises(PlannerError, match=r"gradient of layers\.0\.bias has no memory of its own"):
        apply_runtime(step(has_memory=False), job())


def test_the_rank_that_holds_more_is_traced() -> None:
    """Halves are 18 elements: the first process has 18 of the matrix, the last 6 and the vector."""
    records = apply_runtime(step(), job())
    kept = [each.block.n_bytes for each in records if each.alloc and each.block.op == "grads_in_partition"]
    # The last one has all elements of both parameters in its buffer, of which it updates some.
    assert kept == [2 * (24 + 10)]


def test_without_marks_nothing_is_reduced_and_no_step_is_done() -> None:
    """Blocks of the modules are handed on as they are."""
    block = TracedBlock(70, 512, Place("forward", 0, 0), "mm", "layers.0")
    own = [Record(True, block, block.place), Record(False, block, block.place)]
    records = apply_runtime([loading(MATRIX, 0), loading(VECTOR, 1), *own], job("zero3"))
    assert records[-2:] == own


@pytest.mark.parametrize("overlaps", [True, False])
def test_stage_3_has_streams_of_its_own_only_where_it_overlaps(overlaps: bool) -> None:
    """Without, nothing that is freed waits for another stream.

    Source: deepspeed 0.19.8 runtime/zero/stage3.py (``reduce_and_partition_stream``), parameter_offload.py
    (``allgather_stream``).
    """
    case = job("zero3")
    case = replace(case, stack=replace(case.stack, zero3_overlap=overlaps))
    records = apply_runtime(step(), case)
    assert any(each.waits for each in records) is overlaps
