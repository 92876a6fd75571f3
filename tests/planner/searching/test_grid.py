"""Grids of scenarios: the same numbers as one by one, whatever the shape of the grid."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.catalog.location import data_dir
from planner.domain.scenario import Scenario
from planner.errors import UsageError
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.predicting import PRIORS, estimate, estimate_calibrated
from planner.records.calibration_file import DEFAULT_CALIBRATION, find_calibration
from planner.searching import grid
from planner.searching.grid import GridAxes, GridIntervals, GridPart, GridResult, estimate_grid
from planner.searching.variants import with_flags, with_rank, with_sizes

# Sums of integers below 2^53 are exact either way; FLOP are above, so Python's integers and floats may differ
# in the last bits.  So may numpy's own exp and log, by up to 4 units of the last place in numpy 1.26, and
# expected records multiply that.
ROUNDING = 1e-12


def scenario(**flags: object) -> Scenario:
    """A resolved scenario."""
    return resolve(
        from_flags({"model": "7b", "method": "lora", "gpu": "a100-80gb:8", "seq": "1024", **flags})
    )


def axes(base: Scenario, **more: Any) -> GridAxes:
    """A small grid over all axes and ten combinations."""
    sizes: dict[str, Any] = {
        "batch": (1, 2, 5, 16),
        "length": (64, 1000, 4096, 16384),
        "rank": (1, 64) if base.recipe.adapter else (),
        "gpus_per_node": (1, 8),
        "sharding": ("ddp", "zero2", "zero3", "fsdp"),
        "offload": ("none", "optimizer", "optimizer+params"),
        "checkpointing": (True, False),
    }
    return GridAxes(base, **(sizes | more))


def point(base: Scenario, result: GridResult, part: GridPart, index: tuple[int, ...]) -> Scenario:
    """The scenario of one point of a grid, with plain numbers."""
    axes_of = (result.batch, result.length, result.rank, result.gpus_per_node)
    batch, length, rank, gpus = (int(values[at]) for values, at in zip(axes_of, index, strict=True))
    old = base.recipe.batch
    flags = {"sharding": part.sharding, "offload": part.offload, "gradient-checkpointing": part.checkpointing}
    real = length if old.tokens_per_sample >= old.seq_len else min(length, old.tokens_per_sample)
    made = with_rank(with_sizes(with_flags(base, flags), batch, length, real), rank)
    return replace(made, hardware=replace(made.hardware, gpus_per_node=gpus))


JOBS: dict[str, dict[str, object]] = {
    "full": {"method": "full", "optimizer": "adamw_torch"},
    "lora": {},
    "qlora, eager attention, whole head": {
        "method": "qlora",
        "attention": "eager",
        "modules_to_save": "lm_head",
    },
    "int8 base, dropout, 8-bit optimizer": {
        "method": "int8",
        "lora_dropout": "0.1",
        "optimizer": "adamw_8bit",
    },
    "natural lengths, old stack": {
        "stack": "hf-trainer@4",
        "padding": "longest",
        "tokens_per_sample": "700",
        "seq": "2048",
    },
    "mixture of experts, liger": {"model": "mixtral-8x7b", "loss": "liger", "grad_accum": "4"},
    "sliding window, two nodes": {"model": "gemma-2-2b", "nodes": "2", "padding": "packed"},
}


@pytest.mark.every(8)
@pytest.mark.parametrize("name", JOBS)
def test_grid_equals_one_by_one(name: str) -> None:
    """Every point of a grid has the memory and time that the estimate of its scenario alone has."""
    base = scenario(**JOBS[name])
    if base.recipe.numerics.quantization == "int8":
        made = estimate_grid(axes(base, sharding=("ddp", "zero1", "zero2")))
    else:
        fewer: dict[str, Any] = (
            {} if name == "lora" else {"sharding": ("ddp", "zero3"), "offload": ("none", "optimizer")}
        )
        made = estimate_grid(axes(base, **fewer))
    assert len(made.parts) >= 4
    chosen = random.Random(name)
    for part in made.parts:
        assert part.step_s is not None
        for _ in range(2):
            index = tuple(chosen.randrange(size) for size in made.shape)
            single = estimate(point(base, made, part, index), PRIORS, quick=True)
            assert single.time is not None
            assert part.must_have_bytes[index] == pytest.approx(
                float(single.memory.must_have_bytes), rel=ROUNDING
            )
            assert part.driver_peak_bytes[index] == pytest.approx(
                float(single.memory.driver_peak_bytes), rel=ROUNDING
            )
            assert part.step_s[index] == pytest.approx(float(single.time.step_s), rel=ROUNDING)


def test_answers_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting the grid into pieces of any size changes no bit of the answer."""
    base = scenario()
    few = axes(
        base, batch=(1, 5), length=(64, 4096), rank=(8, 64), sharding=("ddp", "zero3"), checkpointing=(True,)
    )
    whole = estimate_grid(few)
    for points in (1, 7, 40):
        monkeypatch.setattr(grid, "CHUNK_POINTS", points)
        cut = estimate_grid(few)
        for one, other in zip(whole.parts, cut.parts, strict=True):
            assert np.array_equal(one.must_have_bytes, other.must_have_bytes)
            assert np.array_equal(one.driver_peak_bytes, other.driver_peak_bytes)
            assert np.array_equal(one.step_s, other.step_s)


def test_an_axis_left_out_keeps_the_value_of_the_base() -> None:
    """A grid without axes is the base scenario itself."""
    base = scenario(sharding="zero3", batch="3", lora_rank="24")
    made = estimate_grid(GridAxes(base))
    assert made.shape == (1, 1, 1, 1)
    assert made.n_scenarios == 1
    assert (made.batch[0], made.length[0], made.rank[0], made.gpus_per_node[0]) == (3, 1024, 24, 8)
    assert made.parts[0].must_have_bytes.item() == pytest.approx(
        float(estimate(base, quick=True).memory.must_have_bytes), rel=ROUNDING
    )


def test_combinations_that_no_library_runs_are_listed_with_the_reason() -> None:
    """Offload without an engine and the like have no numbers but a sentence."""
    made = estimate_grid(axes(scenario(), batch=(1,), length=(512,), rank=(8,), gpus_per_node=(8,)))
    refused = {(each.sharding, each.offload): each.reason for each in made.refused}
    assert "Only ZeRO and FSDP offload" in refused["ddp", "optimizer"]
    assert "ZeRO offloads parameters in stage 3 only" in refused["zero2", "optimizer+params"]
    assert not {(part.sharding, part.offload) for part in made.parts} & refused.keys()
    assert len(made.parts) + len(made.refused) == 4 * 3 * 2


def test_a_length_that_the_model_cannot_look_up_refuses_the_grid() -> None:
    """GPT-2 has a table of 1,024 positions: a grid beyond it has no answers."""
    base = resolve(from_flags({"model": "gpt2", "method": "full", "gpu": "4090", "seq": "512"}))
    made = estimate_grid(GridAxes(base, length=(512, 2048)))
    assert made.parts == ()
    assert "table" in made.refused[0].reason


def test_short_samples_keep_their_length() -> None:
    """Samples of 300 tokens stay so under a cap that none of them meets; where some do, they are cut."""
    base = scenario(padding="longest", tokens_per_sample="300", gpu="a100-80gb", batch="16")
    step = estimate_grid(GridAxes(base, length=(150, 1024, 8192, 16384))).parts[0].step_s
    assert step is not None
    short, at_base, longer, longest = step.ravel()
    assert longer == pytest.approx(longest, rel=1e-3)
    assert short < at_base < longer


def test_unknown_rates_give_memory_without_time() -> None:
    """On a card of which only the memory is known there is a peak and no step time."""
    base = resolve(from_flags({"model": "7b", "method": "qlora", "gpu_memory": "24GiB", "seq": "1024"}))
    part = estimate_grid(GridAxes(base, batch=(1, 2))).parts[0]
    assert part.step_s is None
    assert part.must_have_bytes.shape == (2, 1, 1, 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"batch": (0,)},
        {"length": (1024, float("nan"))},
        {"rank": (float("inf"),)},
        {"gpus_per_node": ((1, 2), (3, 4))},
    ],
)
def test_axes_hold_finite_numbers_of_at_least_one(bad: dict[str, Any]) -> None:
    """Zero, NaN, infinity and a table instead of a list are refused by the name of the axis."""
    with pytest.raises(UsageError, match=next(iter(bad))):
        estimate_grid(GridAxes(scenario(), **bad))


def test_a_full_fine_tune_has_no_rank_axis() -> None:
    """Varying a rank that does not exist is a mistake, not a constant."""
    with pytest.raises(UsageError, match="rank"):
        estimate_grid(GridAxes(scenario(method="full"), rank=(8, 16)))


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"method": "full", "padding": "longest", "tokens_per_sample": 300},
        {"method": "qlora", "gpu": "4090:8"},
    ],
)
def test_intervals_of_a_grid_are_those_of_its_points(flags: dict[str, object]) -> None:
    """Ends of intervals and P(fits) are what one scenario at a time gets, also where the card caps them."""
    model = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
    base = scenario(**flags)
    result = estimate_grid(
        axes(base, length=(1024, 4096), sharding=("ddp", "zero3"), offload=("none",)), model
    )
    for part in result.parts:
        assert part.intervals is not None
        for index in random.Random(7).sample(list(np.ndindex(result.shape)), 12):
            one = estimate_calibrated(point(base, result, part, index), model, quick=True)
            assert one.uncertainty is not None
            assert one.uncertainty.step is not None
            driver = dict(one.uncertainty.memory)["driver"]
            expected = (
                driver.low,
                driver.high,
                one.fits_probability,
                one.uncertainty.step.low,
                one.uncertainty.step.high,
            )
            found = [getattr(part.intervals, name)[index] for name in GridIntervals.__slots__]
            assert found == pytest.approx(expected, rel=1e-9)


def test_a_grid_without_a_calibration_has_no_intervals() -> None:
    """Literature values know nothing of their errors."""
    assert all(
        part.intervals is None
        for part in estimate_grid(axes(scenario(), length=(512,), offload=("none",))).parts
    )
