"""Peaks that are a percentile over the steps: the law of lengths behind them,
and the batch that they are compared with.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from planner.calibration.fit.targets import targets_of
from planner.calibration.score.percentile import at_percentile
from planner.calibration.score.rows import score_record
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_record
from planner.intake.resolve import resolve
from planner.memory.drawn_lengths import longest_of_batch_tokens
from planner.program.job import Job, job_of
from planner.records import read_records
from tests.accuracy.published import published_dir
from tests.jobs import resolved, typed

CAP, MEAN, BATCH = 768, 202, 4
# Smallest length in units of the spread, for a deviation of 0.8 of the mean.
START = 0.25


# Batches of PEFT's method comparison, the one published source with percentiles.
SORTED = "sorts_lengths=true;keeps_outgrown_blocks=false;drops_long_samples=true"


def _job(switches: str) -> Job:
    said = typed(
        f"--model llama-3.2-3b --method lora --gpu l40s --batch {BATCH} --seq {CAP} --padding longest"
    )
    scenario = resolved({**said, "tokens_per_sample": MEAN, **({"switches": switches} if switches else {})})
    return job_of(scenario, replace(Coefficients(), length_variation=0.8))


def _record() -> RunRecord:
    return next(
        each
        for each in read_records([published_dir() / "peft_metamath.csv"]).records
        if each.id == "peft_metamath-034"
    )


def _drawn(*, drops: bool, spread: float, seed: int) -> list[float]:
    """Lengths of a shifted exponential, above the cap cut to it or left out."""
    draw = random.Random(seed)
    lengths = (START * spread + draw.expovariate(1 / spread) for _ in range(120_000))
    return (
        [length for length in lengths if length <= CAP] if drops else [min(length, CAP) for length in lengths]
    )


def _spread(*, drops: bool) -> float:
    """The spread with which the mean is right, by halving an interval on one set of draws."""
    low, high = 50.0, 400.0
    for _ in range(12):
        middle = (low + high) / 2
        lengths = _drawn(drops=drops, spread=middle, seed=1)
        low, high = (middle, high) if sum(lengths) / len(lengths) < MEAN else (low, middle)
    return low


@pytest.mark.parametrize(("switches", "drops", "together"), [(SORTED, True, 1), ("", False, BATCH)])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_length_is_the_quantile_of_drawn_batches(
    switches: str, drops: bool, together: int, share: float
) -> None:
    """Within 4 %: of single samples where batches are sorted by length,
    of the longest of four where they are not.
    """
    lengths = _drawn(drops=drops, spread=_spread(drops=drops), seed=2)
    longest = sorted(max(lengths[at : at + together]) for at in range(0, len(lengths) - together, together))
    expected = longest[math.floor(share * len(longest))]
    assert longest_of_batch_tokens(_job(switches), share) == pytest.approx(expected, rel=0.04)


def test_the_longest_of_all_batches_and_batches_of_one_length_have_the_cap() -> None:
    """All of the batches stay within the cap, and padded ones are always at it."""
    assert longest_of_batch_tokens(_job(SORTED), 1.0) == CAP
    job = _job(SORTED)
    batch = replace(job.recipe.batch, padding="max_length")
    padded = job_of(replace(job.scenario, recipe=replace(job.recipe, batch=batch)), Coefficients())
    assert longest_of_batch_tokens(padded, 0.5) == CAP


def test_a_percentile_is_compared_with_the_batch_of_that_length() -> None:
    """The fit and the validation take the shorter batch, and the time stays that of the job."""
    record = _record()
    whole = replace(record, peak_memory_percentile=None)
    scenario = resolve(from_record(record), force=True)
    assert at_percentile(whole, scenario) is scenario
    assert MEAN < at_percentile(record, scenario).recipe.batch.seq_len < CAP
    read, peak = score_record(record, Coefficients()), score_record(whole, Coefficients())
    assert read.memory is not None
    assert peak.memory is not None
    assert read.memory.predicted < 0.95 * peak.memory.predicted
    assert read.throughput == peak.throughput
    memory, *_ = targets_of(record, scenario)
    assert memory.scenario.recipe.batch == at_percentile(record, scenario).recipe.batch


def test_a_reading_over_the_steps_leaves_loading_out() -> None:
    """That of the whole run is larger where the model was widened while it was loaded: Axolotl's log."""
    records = read_records([published_dir() / "axolotl_examples.csv"]).records
    record = next(
        each for each in records if each.peak_memory_percentile == 100 and each.model == "mistral-small-24b"
    )
    steps, whole = (
        score_record(each, Coefficients()).memory
        for each in (record, replace(record, peak_memory_percentile=None))
    )
    assert steps is not None
    assert whole is not None
    assert steps.predicted < 0.9 * whole.predicted
