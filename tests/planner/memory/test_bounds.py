"""Bounds of architectures without a program, on architectures that have one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalog.models import load_model
from planner.catalog.unmodelled import Range, read_ranges, training_of
from planner.domain.model import ModelSpec
from planner.domain.term import STATE_TERMS
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.bounds import bounds_of, plain_decoder, rest_of, units_of
from planner.memory.certain import certain_bytes
from planner.memory.replayed_peak import predict_replayed
from planner.program.job import Job, job_of
from tests.accuracy.architecture_ranges import family_of

JOBS = (
    {"method": "full"},
    {"method": "full", "optimizer": "adamw_8bit", "precision": "bf16"},
    {"method": "lora", "gradient_checkpointing": True},
    {"method": "qlora"},
    {"method": "int8"},
    {"method": "full", "sharding": "ddp", "gpus": "4"},
    {"method": "full", "sharding": "zero2", "gpus": "4"},
    {"method": "full", "sharding": "zero3", "gpus": "4"},
    {"method": "full", "sharding": "fsdp", "gpus": "4"},
)


def _job(model: ModelSpec, flags: dict[str, object]) -> Job:
    request = from_flags({"model": model.id, "gpu": "h100-sxm", "seq": "512", "batch": "2", **flags})
    return job_of(resolve(request, model=model), Coefficients())


@pytest.mark.parametrize("name", ["qwen3-0.6b", "gpt2", "olmoe-1b-7b"])
@pytest.mark.parametrize("flags", JOBS, ids=lambda flags: "-".join(map(str, flags.values())))
def test_what_is_certain_is_what_the_program_holds(name: str, flags: dict[str, object]) -> None:
    """Sums of parameters are the states that stand when the program ends, but for rounding to blocks
    and what an engine holds beside its part; with gradients they are still below the peak.
    """
    job = _job(load_model(name).spec, flags)
    certain, done = certain_bytes(job), predict_replayed(job, minimum_too=False)
    states = sum(n_bytes for term, n_bytes in certain.items() if term in STATE_TERMS)
    assert 0.97 * done.state_bytes <= states <= done.state_bytes
    assert sum(certain.values()) <= done.allocated_peak_bytes


@pytest.mark.parametrize("flags", JOBS[:4], ids=lambda flags: "-".join(map(str, flags.values())))
@pytest.mark.parametrize("name", ["qwen3-0.6b", "gpt2", "opt-125m"])
def test_a_known_model_lies_within_its_bounds(name: str, flags: dict[str, object]) -> None:
    """As it must, because it is one of those that the range was made from."""
    model = load_model(name).spec
    job, plain = _job(model, flags), _job(plain_decoder(model), flags)
    key = (family_of(model), training_of(job.recipe), job.recipe.gradient_checkpointing)
    within = next(each for each in read_ranges().ranges if each.key == key)
    bounds, done = bounds_of(job, plain, within), predict_replayed(job, minimum_too=False)
    assert bounds.low_bytes <= done.must_have_bytes
    assert done.uncapped_driver_bytes <= bounds.high_bytes
    assert bounds.certain_bytes <= bounds.low_bytes


def test_llama_is_its_own_plain_decoder() -> None:
    """The same program, so the unit of the lower end is what the job itself needs."""
    model = load_model("smollm-135m").spec
    job, plain = _job(model, {"method": "full"}), _job(plain_decoder(model), {"method": "full"})
    assert plain.model.param_count == model.param_count
    assert rest_of(job)[0] == units_of(job, plain)[0]


def test_an_update_grows_with_what_is_trained() -> None:
    """Gradients of a model with more parameters than its plain decoder are in the unit."""
    model = load_model("smollm-135m").spec
    wide = replace(model.groups[0].block, extra_params=10**9)
    larger = replace(model, groups=(replace(model.groups[0], block=wide),))
    flags: dict[str, object] = {"method": "full"}
    assert units_of(_job(larger, flags), _job(plain_decoder(model), flags))[0] > 2 * 10**9


def test_the_ranges_are_those_of_every_kind_of_job() -> None:
    """Three families, three trainings, with checkpointing and without; ends in their order."""
    ranges: list[Range] = read_ranges().ranges
    assert len({each.key for each in ranges}) == len(ranges) == 18
    assert all(0 < each.low <= 1.0 for each in ranges if each.family == "dense")
    assert all(each.n > 4 for each in ranges)
