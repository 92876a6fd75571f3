"""Grids of scenarios: the same numbers as one by one, whatever the shape of the grid."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from planner.domain.scenario import Scenario
from planner.errors import RefusedCombinationError, UsageError
from planner.predicting import PRIORS, estimate
from planner.searching import grid
from planner.searching.grid import Grid, estimate_grid
from planner.searching.variants import with_sizes
from tests.jobs import resolved, typed

# Sums of integers below 2^53 are exact either way; FLOP are above, so Python's integers and floats may differ
# in the last bits.  So may numpy's own exp and log, by up to 4 units of the last place in numpy 1.26, and
# expected records multiply that.
ROUNDING = 1e-12


scenario = partial(resolved, model="7b", method="lora", gpu="a100-80gb:8", seq="1024")
"""A resolved scenario."""


BATCHES, LENGTHS = (1, 2, 5, 16), (64, 1000, 4096, 16384)


def point(base: Scenario, made: Grid, row: int, column: int) -> Scenario:
    """The scenario of one point of a grid, with plain numbers."""
    old, batch, length = base.recipe.batch, int(made.batch[row]), int(made.length[column])
    real = length if old.tokens_per_sample >= old.seq_len else min(length, old.tokens_per_sample)
    return with_sizes(base, batch, length, real)


JOBS: dict[str, dict[str, object]] = {
    "full": {"method": "full", "optimizer": "adamw_torch"},
    "lora": {},
    "qlora, eager attention, whole head": typed("--method qlora --attention eager --modules-to-save lm_head"),
    "int8 base, dropout, 8-bit optimizer": typed("--method int8 --lora-dropout 0.1 --optimizer adamw_8bit"),
    "natural lengths, old stack": typed(
        "--stack hf-trainer@4 --padding longest --tokens-per-sample 700 --seq 2048"
    ),
    "mixture of experts, liger": {"model": "mixtral-8x7b", "loss": "liger", "grad_accum": "4"},
    "sliding window, two nodes": {"model": "gemma-2-2b", "nodes": "2", "padding": "packed"},
}


SETTINGS: list[dict[str, object]] = [
    {"sharding": "ddp", "gradient_checkpointing": False},
    {"sharding": "zero2", "gradient_checkpointing": True},
    {"sharding": "zero3", "offload": "optimizer", "gradient_checkpointing": True},
    {"sharding": "fsdp", "gradient_checkpointing": False},
]


@pytest.mark.every(8)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda each: each["sharding"])
@pytest.mark.parametrize("name", JOBS)
def test_grid_equals_one_by_one(name: str, settings: dict[str, object]) -> None:
    """Every point of a grid has the memory and time that the estimate of its scenario alone has."""
    if name.startswith("int8") and settings["sharding"] in ("zero3", "fsdp"):
        settings = {"sharding": "zero1", "gradient_checkpointing": False}
    base = scenario(**JOBS[name] | settings)
    made = estimate_grid(base, batch=BATCHES, length=LENGTHS)
    assert made.step_s is not None
    for row, column in random.Random(name).sample([*np.ndindex(made.step_s.shape)], 3):
        single = estimate(point(base, made, row, column), PRIORS, quick=True)
        assert single.time is not None
        assert made.must_have_bytes[row, column] == pytest.approx(
            float(single.memory.must_have_bytes), rel=ROUNDING
        )
        assert made.driver_peak_bytes[row, column] == pytest.approx(
            float(single.memory.driver_peak_bytes), rel=ROUNDING
        )
        assert made.step_s[row, column] == pytest.approx(float(single.time.step_s), rel=ROUNDING)


def test_answers_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting the grid into pieces of any size changes no bit of the answer."""
    sizes = {"batch": (1, 5), "length": (64, 4096)}
    for sharding in ("ddp", "zero3"):
        base = scenario(sharding=sharding)
        whole = estimate_grid(base, **sizes)
        for points in (1, 3, 40):
            with monkeypatch.context() as patch:
                patch.setattr(grid, "CHUNK_POINTS", points)
                cut = estimate_grid(base, **sizes)
            assert np.array_equal(whole.must_have_bytes, cut.must_have_bytes)
            assert np.array_equal(whole.driver_peak_bytes, cut.driver_peak_bytes)
            assert np.array_equal(whole.step_s, cut.step_s)


def test_an_axis_left_out_keeps_the_value_of_the_base() -> None:
    """A grid without axes is the base scenario itself."""
    base = scenario(sharding="zero3", batch="3", lora_rank="24")
    made = estimate_grid(base)
    assert (made.batch.tolist(), made.length.tolist()) == ([3], [1024])
    assert made.must_have_bytes.item() == pytest.approx(
        float(estimate(base, quick=True).memory.must_have_bytes), rel=ROUNDING
    )


def test_a_length_that_the_model_cannot_look_up_refuses_the_grid() -> None:
    """GPT-2 has a table of 1,024 positions: a grid beyond it has no answers."""
    base = resolved({"model": "gpt2", "method": "full", "gpu": "4090", "seq": "512"})
    with pytest.raises(RefusedCombinationError, match="table"):
        estimate_grid(base, length=(512, 2048))


def test_short_samples_keep_their_length() -> None:
    """Samples of 300 tokens stay so under a cap that none of them meets; where some do, they are cut."""
    base = scenario(padding="longest", tokens_per_sample="300", gpu="a100-80gb", batch="16")
    step = estimate_grid(base, length=(150, 1024, 8192, 16384)).step_s
    assert step is not None
    short, at_base, longer, longest = step.ravel()
    assert longer == pytest.approx(longest, rel=1e-3)
    assert short < at_base < longer


def test_unknown_rates_give_memory_without_time() -> None:
    """On a card of which only the memory is known there is a peak and no step time."""
    base = resolved({"model": "7b", "method": "qlora", "gpu_memory": "24GiB", "seq": "1024"})
    made = estimate_grid(base, batch=(1, 2))
    assert made.step_s is None
    assert made.must_have_bytes.shape == (2, 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"batch": (0,)},
        {"length": (1024, float("nan"))},
        {"batch": (float("inf"),)},
        {"length": ((1, 2), (3, 4))},
    ],
)
def test_axes_hold_finite_numbers_of_at_least_one(bad: dict[str, Any]) -> None:
    """Zero, NaN, infinity and a table instead of a list are refused by the name of the axis."""
    with pytest.raises(UsageError, match=next(iter(bad))):
        estimate_grid(scenario(), **bad)
