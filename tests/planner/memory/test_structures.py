"""Which jobs share a program, and how a grid is cut into parts that do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from planner.domain.recipes.flat_recipe import with_flat
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory.structures import alike, program_of
from planner.program.job import job_of
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.step import step_of
from planner.searching.variants import with_sizes
from planner.units import MIB
from tests.jobs import resolved

PRIORS = Coefficients()


base = partial(resolved, gpu="a100-80gb", seq=1024)
"""A job on one card, unless told otherwise."""


def at(scenario: Scenario, batch: object, length: object, rank: object, tokens: object) -> Scenario:
    """The same job with other sizes."""
    made = with_sizes(scenario, batch, length, tokens)  # type: ignore[arg-type]
    if scenario.recipe.adapter is None:
        return made
    return replace(made, recipe=with_flat(made.recipe, {"lora_rank": rank}))


def test_sizes_share_a_program_and_switches_do_not() -> None:
    """Batches of 2 and of 7 run alike; one sample,
    a window that is reached and another rank's 8-bit states do not.
    """
    scenario = base(model="mistral-7b-v0.1", method="qlora", optimizer="adamw_8bit")

    def known(batch: int, length: int, rank: int = 16) -> object:
        return program_of(job_of(at(scenario, batch, length, rank, length), PRIORS))

    assert known(2, 512) is known(7, 1024)
    assert known(1, 512) is not known(2, 512)
    assert known(2, 8192) is not known(2, 512)
    assert known(2, 512, 8) is not known(2, 512)


@pytest.mark.parametrize(
    "flags",
    [
        {"method": "full"},
        {"method": "lora", "padding": "longest", "attention": "eager"},
        {"method": "qlora", "grad_accum": 4, "gradient_checkpointing": True},
        {"method": "full", "sharding": "zero3", "gpus": 2},
        {"method": "full", "task": "gkd", "stack": "swift", "teacher_model": "qwen2-1.5b"},
    ],
    ids=lambda flags: "-".join(map(str, flags.values())),
)
def test_a_shared_program_is_that_of_each_job(flags: dict[str, object]) -> None:
    """Events, terms, streams and bytes of each unit, whichever job came first."""
    scenario = base(model="qwen2-0.5b", **flags)
    jobs = [job_of(at(scenario, *sizes), PRIORS) for sizes in ((3, 256, 8, 200), (5, 2048, 64, 1000))]
    assert program_of(jobs[0]) is program_of(jobs[1])
    for job in jobs:
        shared, own = program_of(job), step_of(job)
        assert shared.events == own.events
        assert (shared.kinds, shared.streams, shared.units) == (own.kinds, own.streams, own.units)
        assert shared.unit_bytes == pytest.approx(own.unit_bytes)


@pytest.mark.parametrize("sharding", ["ddp", "zero2", "zero3", "fsdp"])
@pytest.mark.parametrize("gpu", ["t4", "4090", "h100-sxm", "b200-sxm", "mi300x"])
def test_a_card_s_program_is_its_own_whichever_card_came_first(gpu: str, sharding: str) -> None:
    """A card decides kernels, cuBLAS's workspace and, under ZeRO-2, where weights are flattened."""
    flags: dict[str, object] = {"model": "qwen2-0.5b", "method": "full", "sharding": sharding}
    program_of(job_of(base(**flags, gpus=2), PRIORS))
    job = job_of(base(**flags, gpu=gpu, gpus=2), PRIORS)
    shared, own = program_of(job), step_of(job)
    assert (shared.events, shared.kinds, shared.streams) == (own.events, own.kinds, own.streams)
    assert (shared.units, shared.unit_bytes) == (own.units, own.unit_bytes)


@pytest.mark.parametrize(("sharding", "shared"), [("ddp", True), ("zero3", True), ("zero2", False)])
def test_cards_share_a_program_that_asks_for_no_room(sharding: str, shared: bool) -> None:
    """Kernels of an A100 run on an H100; cuBLAS's workspace differs, and is a unit."""
    flags: dict[str, object] = {"model": "qwen2-0.5b", "method": "lora", "sharding": sharding, "gpus": 2}
    older, newer = (job_of(base(**flags, gpu=gpu), PRIORS) for gpu in ("a100-40-sxm", "h100-sxm"))
    assert (program_of(older) is program_of(newer)) == shared
    assert unit_values(older)[Unit.WORKSPACE] == 8.125 * MIB
    assert unit_values(newer)[Unit.WORKSPACE] == 32 * MIB


@pytest.mark.parametrize(
    ("stack", "task", "parts"),
    [("llama-factory-v1", "dpo", 2), ("axolotl@0.8", "simpo", 3)],
    ids=["a joined pair is one row", "each row has a gradient of its own"],
)
def test_one_pair_does_not_run_like_several(stack: str, task: str, parts: int) -> None:
    """Whichever job came first, and in a grid."""
    scenario = base(model="qwen2-0.5b", method="lora", stack=stack, task=task)
    several, one = (job_of(at(scenario, batch, 256, 8, 256), PRIORS) for batch in (2, 1))
    assert program_of(several) is not program_of(one)
    assert program_of(one).events == step_of(one).events
    grid = job_of(at(scenario, np.array([1.0, 2.0, 3.0]), 256, 8, 256), PRIORS)
    assert len([*alike(grid)]) == parts


def test_a_mask_with_slopes_is_copied_where_its_rows_are_uneven() -> None:
    """Falcon with ALiBi: rows of 1,000 keys are padded in each layer, those of 1,008 and 1,024 are not."""
    scenario = base(model="falcon-rw-1b", method="lora", padding="longest", attention="sdpa")
    even, next_, uneven = (
        program_of(job_of(at(scenario, 4, length, 8, length - 100), PRIORS)) for length in (1008, 1024, 1000)
    )
    assert even is next_
    assert uneven is not even


def test_masks_say_where_each_job_stands() -> None:
    """One sample or several, below and above the window of 4,096 tokens:
    four parts that cover the grid once.
    """
    scenario = base(model="mistral-7b-v0.1", method="lora")
    batch, length = np.array([[1.0], [2.0], [3.0]]), np.array([[512.0, 8192.0]])
    parts = [*alike(job_of(at(scenario, batch, length, 8, length), PRIORS))]
    assert len(parts) == 4
    assert np.array_equal(
        sum(np.broadcast_to(mask, (3, 2)).astype(int) for mask, _ in parts), np.ones((3, 2))
    )
    assert all(one.is_one for _, one in parts)


@pytest.mark.parametrize(("sharding", "shared"), [("zero3", 3), ("ddp", 1)])
def test_engines_count_the_elements_of_parts(sharding: str, shared: int) -> None:
    """So the number of GPUs makes another program of theirs, and of no other."""
    scenario = base(model="qwen2-0.5b", method="full", gpus=2, sharding=sharding)
    hardware = scenario.hardware
    programs = {
        id(program_of(job_of(replace(scenario, hardware=replace(hardware, gpus_per_node=gpus)), PRIORS)))
        for gpus in (2, 4, 8)
    }
    assert len(programs) == shared


@pytest.mark.parametrize(("gpus", "shared"), [(1, 1), (2, 2)])
def test_ranks_make_another_program_where_buckets_of_gradients_do(gpus: int, shared: int) -> None:
    """On one card adapters of every rank run alike."""
    scenario = base(model="qwen2-0.5b", method="lora", gpus=gpus, sharding="none" if gpus == 1 else "ddp")
    jobs = [job_of(at(scenario, 2, 512, rank, 512), PRIORS) for rank in (8, 64)]
    assert len({id(program_of(job)) for job in jobs}) == shared
