"""The cache that natural lengths pile up: which jobs have it, how many records there are, and what it does to the totals."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from itertools import pairwise
from math import exp, expm1, log

import numpy as np
import pytest

from planner.domain.coefficients import Coefficients
from planner.domain.scenario import Scenario
from planner.domain.term import LENGTH_CACHE
from planner.intake.request import from_flags
from planner.intake.resolve import resolve
from planner.memory.lengths import length_cache, middle_sum, records
from planner.memory.peak import predict_memory
from planner.prediction import estimate
from planner.program.job import Job, job_of

PRIORS = Coefficients()
NATURAL = {
    "model": "qwen2.5-7b",
    "method": "lora",
    "gpu": "h200-sxm",
    "seq": 2048,
    "tokens_per_sample": 800,
    "padding": "longest",
    "gradient_checkpointing": True,
}


def scenario(**flags: object) -> Scenario:
    """LoRA of a 7B model on samples of natural length."""
    return resolve(from_flags({**NATURAL, **flags}))


def job(**flags: object) -> Job:
    """The job of :func:`scenario`."""
    return job_of(scenario(**flags), PRIORS)


@pytest.mark.parametrize(
    "flags",
    [
        {"padding": "max_length"},
        {"padding": "packed"},
        {"tokens_per_sample": 2048},
        {"loss": "chunked"},
        {"stack": "axolotl"},
        {"switches": "keeps_outgrown_blocks=false"},
    ],
    ids=lambda flags: "-".join(f"{key}={value}" for key, value in flags.items()),
)
def test_jobs_whose_shapes_stay_or_whose_cache_goes_have_none(flags: dict[str, object]) -> None:
    """One size of batch, a loss in pieces, segments that grow or a cache that is emptied: no term is shown."""
    assert length_cache(job(**flags), 1e9).n_bytes == 0
    assert all(term.label != LENGTH_CACHE for term in estimate(scenario(**flags)).memory.terms)


def test_it_counts_in_reserved_and_not_in_what_must_be_held() -> None:
    """The card's total rises by the term; allocated and what decides whether the job fits stay as they are."""
    natural, fixed = (predict_memory(job(padding=padding)) for padding in ("longest", "max_length"))
    term = next(term for term in natural.terms if term.label == LENGTH_CACHE)
    assert float(term.n_bytes) > 1e9
    assert natural.reserved_peak_bytes == pytest.approx(float(fixed.reserved_peak_bytes) + float(term.n_bytes), rel=1e-3)
    assert natural.must_have_bytes == pytest.approx(float(fixed.must_have_bytes), rel=1e-3)
    assert natural.allocated_peak_bytes == pytest.approx(float(fixed.allocated_peak_bytes), rel=1e-3)


def test_a_full_card_gets_it_back() -> None:
    """On a card that holds the job but not its cache, what is reserved ends at the card, and the job fits."""
    small = scenario(gpu="a10")
    made = predict_memory(job_of(small, PRIORS))
    assert float(made.uncapped_driver_bytes) > float(made.limit_bytes or 0)
    assert float(made.must_have_bytes) < float(made.limit_bytes or 0)
    assert made.driver_peak_bytes == made.limit_bytes
    assert estimate(small).verdict == "fits"


@pytest.mark.parametrize("stack", ["hf-trainer@5", "swift"], ids=["cut", "left-out"])
@pytest.mark.parametrize(("mean", "samples", "steps"), [(800, 1, 200), (400, 4, 200), (1600, 2, 100), (200, 1, 300)])
def test_records_are_those_of_drawn_runs(mean: int, samples: int, steps: int, stack: str) -> None:
    """Sum of all records but the last, its deviation, its median and the first batch, against 1,500 runs of the same law."""
    made = job(tokens_per_sample=mean, batch=samples, stack=stack)
    drops = made.stack.drops_long_samples
    assert drops == (stack == "swift")
    run = replace(made.scenario.run, n_samples=samples * steps)
    found = records(replace(made, scenario=replace(made.scenario, run=run)))
    start = (1 - PRIORS.length_variation) / PRIORS.length_variation
    end = _level_by_bisection(mean / 2048, start, drops=drops)
    draw = random.Random(7)
    below_cap = 1 - exp(-end)

    def level() -> float:
        return -log(1 - draw.random() * below_cap) if drops else min(draw.expovariate(1), end)

    sums, firsts = [], []
    for _ in range(1500):
        longest = [max(level() for _ in range(samples)) for _ in range(steps)]
        lengths = [(start + level) / (start + end) for level in longest]
        tops = [lengths[0]]
        for length in lengths:
            if length > tops[-1]:
                tops.append(length)
        sums.append(sum(tops[:-1]))
        firsts.append(lengths[0])
    assert found.total == pytest.approx(statistics.mean(sums), rel=0.08)
    assert found.squares**0.5 == pytest.approx(statistics.pstdev(sums), rel=0.2)
    assert found.first == pytest.approx(statistics.mean(firsts), rel=0.03)
    assert middle_sum(found) == pytest.approx(statistics.median(sums), abs=0.25 if drops else 0.15)
    assert found.at_once == pytest.approx(sum(first == 1 for first in firsts) / len(firsts), abs=0.04)


def _level_by_bisection(mean: float, start: float, *, drops: bool) -> float:
    """Where a shifted exponential ends, cut or without what lies beyond, so that its mean is ``mean`` of that length."""
    low, high = 1e-9, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        beyond = middle / expm1(min(middle, 700.0)) if drops else exp(-middle)
        low, high = (middle, high) if (start + 1 - beyond) / (start + middle) > mean else (low, middle)
    return low


def test_samples_above_the_length_strand_more_where_they_are_left_out_than_where_they_are_cut() -> None:
    """Batches reach a length by and by where no sample is cut to it; where many are, the first ones already have it."""
    jobs = (job(tokens_per_sample=1100, stack="swift@1", switches=f"drops_long_samples={drops}") for drops in ("false", "true"))
    cut, left_out = (float(length_cache(each, 0).n_bytes) for each in jobs)
    assert left_out > 1.3 * cut > 0


def test_sixteen_bit_logits_find_room_in_outgrown_fp32_blocks() -> None:
    """A model whose code keeps logits in 16 bits strands two thirds of its copies under autocast: those in fp32."""
    wide = job(stack="swift@1")
    narrow = replace(wide, scenario=replace(wide.scenario, model=replace(wide.model, fp32_logits=False)))
    assert float(length_cache(narrow, 0).n_bytes) == pytest.approx(2 / 3 * float(length_cache(wide, 0).n_bytes), rel=1e-6)


def test_shorter_means_have_more_records_and_a_grid_says_the_same() -> None:
    """The further the cap is from the mean, the more records come before it; arrays give what single numbers give."""
    means = (400, 800, 1600, 2000)
    single = [float(records(job(tokens_per_sample=mean)).total) for mean in means]
    assert all(first > second for first, second in pairwise(single))
    made = scenario()
    batch = replace(made.recipe.batch, tokens_per_sample=np.array(means, float), seq_len=np.full(4, 2048.0))
    grid = records(job_of(replace(made, recipe=replace(made.recipe, batch=batch)), PRIORS)).total
    assert np.allclose(grid, single)


def test_extreme_lengths_stay_finite() -> None:
    """A cap ten thousand times the mean, one sample and a mean at the cap give finite numbers that are not negative."""
    for flags in ({"seq": 131072, "tokens_per_sample": 16}, {"tokens_per_sample": 2047}, {"batch": 256, "tokens_per_sample": 17}):
        made = length_cache(job(**flags), 1e9)
        assert 0 <= float(made.n_bytes) < 1e14
        assert 0 <= float(made.spread_bytes) < 1e14


def test_most_orders_of_samples_that_reach_the_cap_strand_nothing() -> None:
    """Where more than half of the first batches have a sample at the cap, the middle order has no record before it."""
    often, seldom = job(tokens_per_sample=1900), job(tokens_per_sample=800)
    assert records(often).at_once > 0.5
    assert length_cache(often, 0).n_bytes == pytest.approx(0, abs=1)
    assert length_cache(often, 0).spread_bytes > 1e8
    assert length_cache(seldom, 0).n_bytes > 1e9
