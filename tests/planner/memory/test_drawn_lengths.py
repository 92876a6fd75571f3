"""Batches of drawn runs that are longer than all before them, against runs drawn sample by sample,
and what they leave behind.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import ceil, exp, expm1, log

import pytest

from planner.allocator.settings import LARGE_SEGMENT_BYTES
from planner.domain.term import LENGTH_CACHE
from planner.domain.uncertainty.coefficients import Coefficients
from planner.memory import replayed
from planner.memory.drawn_lengths import NewLongest, drawn_longest, longest_of_batch_tokens, micro_steps
from planner.memory.replayed_peak import predict_replayed
from planner.predicting import estimate
from planner.program.job import Job, job_of
from planner.units import GIB
from tests.jobs import resolved, typed

PRIORS = Coefficients()
CAP, MEAN = 2048, 800
NATURAL = typed(
    f"--model qwen2.5-7b --method lora --gpu h200-sxm --seq {CAP} --tokens-per-sample {MEAN} "
    "--padding longest --gradient-checkpointing"
)


scenario = partial(resolved, NATURAL)
"""LoRA of a 7B model on samples of natural length."""


def job(**flags: object) -> Job:
    """The job of :func:`scenario`."""
    return job_of(scenario(**flags), PRIORS)


def of_length(made: Job, n_steps: int) -> Job:
    """The same job with so many micro-steps."""
    run = replace(made.scenario.run, n_samples=n_steps * int(made.recipe.batch.micro_batch), epochs=1.0)
    return replace(made, scenario=replace(made.scenario, run=run))


def tokens(made: Job) -> list[int]:
    """Lengths of the new longest batches."""
    return [each.tokens for each in drawn_longest(made)]


def runs_of(made: Job, n_runs: int) -> Iterator[list[int]]:
    """New longest batches of so many orders of the samples."""
    return ([each.tokens for each in drawn_longest(made, order)] for order in range(n_runs))


@pytest.mark.parametrize(
    "flags",
    [
        {"padding": "max_length"},
        {"padding": "packed"},
        {"tokens_per_sample": CAP},
        {"stack": "axolotl"},
        {"switches": "keeps_outgrown_blocks=false"},
        {"switches": "empties_before_backward=first"},
    ],
    ids=lambda flags: "-".join(f"{key}={value}" for key, value in flags.items()),
)
def test_jobs_whose_shapes_stay_or_whose_cache_goes_have_none(flags: dict[str, object]) -> None:
    """One size of batch, segments that grow or a cache that is emptied:
    nothing is drawn and no term is shown.
    """
    assert drawn_longest(job(**flags)) == []
    assert all(term.label != LENGTH_CACHE for term in estimate(scenario(**flags)).memory.terms)


def test_batches_of_drawn_lengths_leave_nothing_where_segments_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed one after the other, they reserve at most two pages more than batches as long as the cap do;
    in plain segments gigabytes.
    """
    lengths = drawn_longest(job())
    assert len(lengths) > 2
    monkeypatch.setattr(replayed, "drawn_longest", lambda *_: lengths)
    piled = [replayed.replayed(job(switches=f"expandable_segments={each}")) for each in ("on", "off")]
    assert piled[0].length_cache_bytes <= 2 * LARGE_SEGMENT_BYTES
    assert piled[1].length_cache_bytes > GIB


def test_a_longer_batch_finds_no_gradients_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without accumulation each batch is a whole step, whose update frees them: batches of one length, step
    after step, reserve what two steps do.
    """
    lengths = [NewLongest(step, CAP) for step in range(4)]
    monkeypatch.setattr(replayed, "drawn_longest", lambda *_: lengths)
    flags = {"model": "qwen2.5-1.5b", "method": "full", "gradient_checkpointing": False}
    made = replayed.replayed(job(**flags))
    assert made.length_cache_bytes <= LARGE_SEGMENT_BYTES


def test_it_counts_in_reserved_and_not_in_what_must_be_held() -> None:
    """The card's total rises by the term;
    allocated and what decides whether the job fits stay as they are.
    """
    natural, fixed = (predict_replayed(job(padding=padding)) for padding in ("longest", "max_length"))
    term = next(term for term in natural.terms if term.label == LENGTH_CACHE)
    assert float(term.n_bytes) > 1e9
    assert natural.reserved_peak_bytes == float(fixed.reserved_peak_bytes) + float(term.n_bytes)
    assert natural.must_have_bytes == fixed.must_have_bytes
    assert natural.allocated_peak_bytes == fixed.allocated_peak_bytes


def test_a_full_card_gets_it_back() -> None:
    """On a card that holds the job but not its cache, what is reserved ends at the card, and the job fits."""
    whole = predict_replayed(job())
    need, shown = float(whole.must_have_bytes), float(whole.uncapped_driver_bytes)
    small = scenario()
    card = replace(small.hardware.gpu, visible_memory_bytes=round((need + shown) / 2))
    small = replace(small, hardware=replace(small.hardware, gpu=card, gpu_reserved_bytes=0))
    made = predict_replayed(job_of(small, PRIORS))
    assert made.uncapped_driver_bytes == shown
    assert made.driver_peak_bytes == made.limit_bytes
    assert estimate(small).verdict == "fits"


@pytest.mark.every(2)
@pytest.mark.parametrize("stack", ["hf-trainer@5", "swift"], ids=["cut", "left-out"])
@pytest.mark.parametrize(
    ("mean", "samples", "steps"), [(800, 1, 200), (400, 4, 200), (1600, 2, 100), (200, 1, 300)]
)
def test_longest_batches_are_those_of_runs_drawn_sample_by_sample(
    mean: int, samples: int, steps: int, stack: str
) -> None:
    """The first batch, the last of the longest ones, the sum of those before it and how many there are,
    over 1,500 orders.
    """
    made = of_length(job(tokens_per_sample=mean, batch=samples, stack=stack), steps)
    drops = made.stack.drops_long_samples
    assert drops == (stack == "swift")
    start = (1 - PRIORS.length_variation) / PRIORS.length_variation
    end = _level_by_bisection(mean / CAP, start, drops=drops)
    draw = random.Random(7)
    below_cap = 1 - exp(-end)

    def length() -> int:
        level = -log(1 - draw.random() * below_cap) if drops else min(draw.expovariate(1), end)
        return ceil(CAP * (start + level) / (start + end))

    def records() -> list[int]:
        tops: list[int] = []
        for _ in range(steps):
            longest = max(length() for _ in range(samples))
            if not tops or longest > 1.01 * tops[-1]:
                tops.append(longest)
        return tops

    found = [*runs_of(made, 1500)]
    drawn = [records() for _ in range(1500)]
    for of_run in (_first, _last, _sum_before, len):
        ours, theirs = ([float(of_run(tops)) for tops in several] for several in (found, drawn))
        # Four standard errors of the difference of two means.
        error = 4 * ((statistics.variance(ours) + statistics.variance(theirs)) / 1500) ** 0.5
        assert statistics.mean(ours) == pytest.approx(statistics.mean(theirs), abs=error)


def _first(tops: list[int]) -> int:
    return tops[0]


def _last(tops: list[int]) -> int:
    return tops[-1]


def _sum_before(tops: list[int]) -> int:
    return sum(tops[:-1])


def _level_by_bisection(mean: float, start: float, *, drops: bool) -> float:
    """Where a shifted exponential ends, cut or without what lies beyond,
    so that its mean is ``mean`` of that length.
    """
    low, high = 1e-9, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        beyond = middle / expm1(min(middle, 700.0)) if drops else exp(-middle)
        low, high = (middle, high) if (start + 1 - beyond) / (start + middle) > mean else (low, middle)
    return low


def test_samples_above_the_length_grow_longer_where_they_are_left_out_than_where_they_are_cut() -> None:
    """Batches reach a length by and by where no sample is cut to it; where many are,
    the first ones already have it.
    """
    sums = {}
    for drops in ("false", "true"):
        made = job(tokens_per_sample=1100, stack="swift@1", switches=f"drops_long_samples={drops}")
        sums[drops] = statistics.mean(map(_sum_before, runs_of(made, 300)))
    assert sums["true"] > 1.3 * sums["false"] > 0


def test_shorter_means_have_more_new_longest_batches() -> None:
    """The further the cap is from the mean, the more of them come before it."""
    counts = [
        statistics.mean(map(len, runs_of(job(tokens_per_sample=mean), 300)))
        for mean in (400, 800, 1600, 2000)
    ]
    assert all(first > second for first, second in pairwise(counts))


def test_most_orders_of_samples_that_reach_the_cap_have_no_shorter_batch_before() -> None:
    """Where the mean is near the cap, more than half of the first batches have a sample at it;
    else hardly any.
    """
    often, seldom = (
        statistics.mean(tops == [CAP] for tops in runs_of(job(tokens_per_sample=mean), 300))
        for mean in (1900, 800)
    )
    assert often > 0.5
    assert seldom < 0.2


@pytest.mark.parametrize(
    "flags",
    [
        {"seq": 131072, "tokens_per_sample": 16},
        {"tokens_per_sample": 2047},
        {"batch": 256, "tokens_per_sample": 17},
    ],
)
def test_extreme_lengths_grow_up_to_the_cap(flags: dict[str, int]) -> None:
    """A cap ten thousand times the mean, one sample and a mean at the cap."""
    tops = tokens(job(**flags))
    assert 1 <= tops[0] <= tops[-1] <= flags.get("seq", CAP)
    assert all(after > 1.01 * before for before, after in pairwise(tops[:-1]))


def test_a_run_has_as_many_micro_steps_as_its_samples_give() -> None:
    """1,000 samples three times over two processes, two at a time: 750; of unknown length 1,000;
    never none.
    """
    made = job(batch=2, gpu="h200-sxm:2", sharding="ddp")
    run = replace(made.scenario.run, n_samples=1000, epochs=3.0)
    assert micro_steps(replace(made, scenario=replace(made.scenario, run=run))) == 750
    assert micro_steps(of_length(made, 0)) == 1
    unknown = replace(made.scenario.run, n_samples=None)
    assert micro_steps(replace(made, scenario=replace(made.scenario, run=unknown))) == 1000


def test_the_longest_that_a_share_of_batches_reach_grows_with_the_share() -> None:
    """Up to the cap, which all of them stay within."""
    made = job()
    lengths = [float(longest_of_batch_tokens(made, share)) for share in (0.1, 0.5, 0.9, 1.0)]
    assert lengths == sorted(lengths)
    assert lengths[0] < MEAN < lengths[2] < lengths[3] == CAP
    assert longest_of_batch_tokens(job(padding="max_length"), 0.1) == CAP
