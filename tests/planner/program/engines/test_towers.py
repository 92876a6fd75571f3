"""A tower that reads nothing, in each engine: Gemma 3 4B on text alone, over two cards."""

from __future__ import annotations

import pytest

from planner.domain.vision import TowerSpec
from planner.program.engines.fsdp.fsdp_units import wraps_tower
from planner.program.engines.params import AT_REST, params_of
from planner.program.job import Job
from planner.program.ops.sizes import unit_values
from planner.program.ops.tensors import Unit
from planner.program.parameters import SEEING
from planner.program.step import parts_of, step_of
from tests.jobs import job_by

N, BF16, FP32 = 2, 2, 4


def job(sharding: str, **flags: object) -> Job:
    """One micro-batch of 256 tokens."""
    given: dict[str, object] = {
        "model": "gemma-3-4b", "method": "full", "gpu": "a100-80gb", "gpus": N, "sharding": sharding,
        "seq": 256, "images_per_sample": 0, "stack": "hf-trainer@5",
    }  # fmt: skip
    return job_by({**given, **flags})


def tower_of(subject: Job) -> TowerSpec:
    """Its tower."""
    assert subject.model.vision is not None
    return subject.model.vision


def made(subject: Job) -> list[tuple[str, float]]:
    """Operator and bytes of all that the engine allocates for itself."""
    stream, values = step_of(subject), unit_values(subject)
    own = [slot for slot in stream.events if slot >= 0 and stream.place(slot)[0] == "fsdp"]
    return [
        (stream.place(slot)[2], float(stream.unit_bytes[slot] * values[Unit(stream.units[slot])]))
        for slot in own
    ]


@pytest.mark.parametrize(("sharding", "op"), [("fsdp", "all_gather_output"), ("fsdp1", "_full_param_padded")])
def test_the_root_gathers_a_tower_whose_layers_are_no_units(sharding: str, op: str) -> None:
    """The first gather is the root's: where layers are units, it has less by all of them,
    and none of them is ever gathered.
    """
    gathered = {
        units: [
            n_bytes for each, n_bytes in made(job(sharding, switches=[f"tower_units={units}"])) if each == op
        ]
        for units in ("layers", "in_root")
    }
    (layers,) = tower_of(job(sharding)).groups
    n_bytes = BF16 * layers.count * layers.block.param_count
    assert gathered["in_root"][0] - gathered["layers"][0] == pytest.approx(n_bytes, abs=1_000)
    assert len(gathered["in_root"]) == len(gathered["layers"])


def test_classes_that_are_listed_and_missing_leave_the_tower_in_the_root() -> None:
    """Gemma 3's list has a head that SigLIP lacks; all classes of Qwen2.5-VL's are there."""
    for model, wraps in (("gemma-3-4b", False), ("gemma-4-31b", False), ("qwen2.5-vl-3b", True)):
        subject = job("fsdp", model=model)
        assert wraps_tower(tower_of(subject), subject.stack) is wraps


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_deepspeed_has_masters_of_a_tower_that_is_not_frozen(sharding: str) -> None:
    """Parameters at rest are all those of tower and projector; states of them are this process's half."""
    free, frozen = job(sharding), job(sharding, freeze="vision_tower;projector")
    at_rest = params_of(free, parts_of(free))[AT_REST]
    assert sum(each.elements for each in at_rest) == tower_of(free).param_count
    assert all(each.trained for each in at_rest)
    assert not any(each.trained for each in params_of(frozen, parts_of(frozen))[AT_REST])
    assert free.trained - frozen.trained == tower_of(free).param_count


def test_fsdp2_widens_what_is_to_be_trained_and_keeps_no_states_of_it() -> None:
    """Accelerate makes fp32 of a tower that is not frozen; it gets no gradient."""
    stream, values = step_of(subject := job("fsdp")), unit_values(subject)
    made = [slot for slot in stream.events if slot >= 0 and stream.place(slot)[1].startswith(SEEING)]
    shards = [slot for slot in made if stream.place(slot)[2] == "shard"]
    n_bytes = sum(float(stream.unit_bytes[slot] * values[Unit(stream.units[slot])]) for slot in shards)
    assert n_bytes == pytest.approx(FP32 * tower_of(subject).param_count / N, rel=0.001)
    assert {stream.place(slot)[2] for slot in made} == {"shard", "whole"}
