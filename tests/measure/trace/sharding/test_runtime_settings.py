"""What a runtime is told: sizes that follow from the model's width, and shards that are padded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from measure.trace.sharding.runtime_settings import (
    FsdpSettings,
    fsdp_settings,
    makes_buckets_early,
    reference_settings,
    zero_settings,
)
from planner.catalog.stacks import load_stack
from planner.domain.scenario import Scenario
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from tests.measure.trace.sharding.made import frozen, parameter

WIDTH = 896


def job(**said: Any) -> Scenario:
    """A model of width 896 on two cards."""
    plain = {"model": "qwen2.5-0.5b", "gpu": "a100-80gb", "gpus": 2, "method": "full", "seq": 64}
    return resolve(from_flags({**plain, "stack": "hf-trainer@5", **said}))


def test_auto_follows_the_width_of_the_model() -> None:
    """Bucket, nine tenths of it, and ten widths, as trainer_config_finalize of Transformers has them."""
    settings = zero_settings(job(sharding="zero3", grad_accum=4))
    assert (settings.stage, settings.world, settings.rank) == (3, 2, 1)
    assert settings.bucket_elements == WIDTH**2
    assert settings.prefetch_elements == int(0.9 * WIDTH**2)
    assert settings.persistence_elements == 10 * WIDTH
    assert settings.overlaps
    assert settings.accumulates


def test_deepspeeds_own_sizes_hold_where_nobody_fills_them_in() -> None:
    """The second model of a training from preferences, and stacks whose file names no ``auto``."""
    scenario = job(sharding="zero3")
    second = reference_settings(scenario)
    assert (second.prefetch_elements, second.persistence_elements) == (50_000_000, 100_000)
    own = zero_settings(replace(scenario, stack=replace(scenario.stack, zero_auto_buckets=False)))
    assert own.bucket_elements == 500_000_000
    assert (own.prefetch_elements, own.persistence_elements) == (50_000_000, 100_000)


@pytest.mark.parametrize(("precision", "width", "checks"), [("bf16-mixed", 2, False), ("fp32", 4, False)])
def test_the_engine_computes_in_the_dtype_of_the_precision(precision: str, width: int, checks: bool) -> None:
    """16-bit where it is mixed, and overflow is looked for in fp16 alone."""
    settings = zero_settings(job(sharding="zero2", precision=precision, load_dtype="fp32"))
    assert (settings.element_bytes, settings.checks_overflow) == (width, checks)
    assert settings.stage == 2


@pytest.mark.parametrize(("sharding", "early"), [("zero2", True), ("zero3", False)])
def test_old_versions_make_the_buckets_of_stages_1_and_2_early(sharding: str, early: bool) -> None:
    """Stage 3 keeps its bucket all the time."""
    old = load_stack("hf-trainer@5", (("deepspeed", "0.16.4"),))
    assert makes_buckets_early(replace(job(sharding=sharding), stack=old)) is early
    assert not makes_buckets_early(job(sharding=sharding))


FSDP = FsdpSettings(
    shards=2, mixed=True, quantized=False, offloads=False, loads_each_name=True, reduces_last_only=False,
    reduces_fp32=False, widens=True, replicates=False, reshards_after_forward=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "shards", "shard"), [((5, 3), 2, (3, 3)), ((4, 3), 2, (2, 3)), ((1,), 8, (1,)), ((7,), 1, (7,))]
)
def test_fsdp_pads_the_first_dimension(shape: tuple[int, ...], shards: int, shard: tuple[int, ...]) -> None:
    """Rows are divided, rounded up; a single number is whole on every rank."""
    settings = replace(FSDP, shards=shards)
    assert settings.shard_shape(parameter("weight", *shape)) == shard


def test_fsdp_keeps_trained_shards_in_fp32() -> None:
    """Not those of a frozen base, nor of one of 4-bit matrices, nor where nothing is mixed."""
    trained, base = parameter("weight", 8), frozen("weight", 8)
    assert (FSDP.stored_bytes(trained), FSDP.stored_bytes(base)) == (4, 2)
    assert replace(FSDP, quantized=True).stored_bytes(trained) == 2
    assert replace(FSDP, mixed=False).stored_bytes(trained) == 2
    assert (FSDP.reduced_bytes(trained), replace(FSDP, reduces_fp32=True).reduced_bytes(trained)) == (2, 4)


def test_a_hybrid_job_divides_inside_of_a_node() -> None:
    """Two nodes of two cards: two shards, which the other node repeats."""
    hybrid = fsdp_settings(job(sharding="hsdp", nodes=2))
    assert (hybrid.shards, hybrid.replicates, hybrid.reshards_after_forward) == (2, True, True)
    whole = fsdp_settings(job(sharding="fsdp", nodes=2))
    assert (whole.shards, whole.replicates) == (4, False)
    assert not fsdp_settings(job(sharding="fsdp-grad-op")).reshards_after_forward


@pytest.mark.parametrize(("load_dtype", "casts"), [("bf16", True), ("fp16", False)])
def test_a_frozen_shard_is_cast_from_one_half_to_the_other(load_dtype: str, casts: bool) -> None:
    """FSDP2 gathers in the dtype of the computation, as wide as it is stored."""
    given = {"method": "lora", "sharding": "fsdp", "precision": "fp16-mixed", "load_dtype": load_dtype}
    assert fsdp_settings(job(**given)).casts(frozen("weight", 4, 4)) is casts
