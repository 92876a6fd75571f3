"""A job whose data set was read: what follows it when other settings change."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import UsageError
from planner.predicting import PRIORS, estimate
from planner.searching.grid import estimate_grid
from planner.searching.variants import with_flags
from tests.files import written
from tests.jobs import resolved, typed

COUNTS = "100\n" * 6 + "700\n" * 3 + "3000\n"


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Ten samples: 100 tokens on most, 3,000 on one."""
    file = written(tmp_path, COUNTS, "counts.txt")
    return str(file)


def job(data: str, **flags: str) -> dict[str, str]:
    """Flags of a job on this data."""
    said = typed(
        "--model llama-3.2-1b --method lora --gpu a100-80-sxm --seq 1024 --batch 4 --padding longest"
    )
    return {**said, "data": data, **flags}


def test_the_mean_follows_the_sequence_length(data: str) -> None:
    """One sample is cut at 1,024, four at 512; the run is over all ten."""
    scenario = resolved(job(data))
    assert scenario.recipe.batch.tokens_per_sample == pytest.approx((6 * 100 + 3 * 700 + 1024) / 10)
    assert scenario.run.n_samples == 10
    shorter = with_flags(scenario, {"seq": "512"})
    assert shorter.recipe.batch.tokens_per_sample == pytest.approx((6 * 100 + 4 * 512) / 10)


def test_no_batch_is_longer_than_the_longest_sample(data: str) -> None:
    """Batches that are padded to their longest sample end at 3,000 tokens, whatever the cap allows."""
    lengths = [
        resolved(job(data, padding=padding, seq=seq)).recipe.batch.seq_len
        for padding, seq in [("longest", "8k"), ("longest", "2k"), ("max_length", "8k"), ("packed", "8k")]
    ]
    assert lengths == [3000, 2048, 8192, 8192]


def test_a_packed_run_has_as_many_sequences_as_its_tokens_fill(data: str) -> None:
    """3,724 tokens are four sequences of 1,024."""
    scenario = resolved(job(data, padding="packed"))
    assert scenario.recipe.batch.tokens_per_sample == 1024
    assert scenario.run.n_samples == 4


def test_a_stack_that_leaves_long_samples_out_has_fewer(data: str) -> None:
    """Axolotl drops the sample of 3,000 tokens, and has nothing to train on where all are longer."""
    scenario = resolved(job(data, stack="axolotl"))
    assert scenario.recipe.batch.tokens_per_sample == pytest.approx((6 * 100 + 3 * 700) / 9)
    assert scenario.run.n_samples == 9
    with pytest.raises(UsageError, match="every sample of --data is longer than --seq 64"):
        resolved(job(data, stack="axolotl", seq="64"))


def test_a_grid_answers_as_single_jobs_do(data: str) -> None:
    """The mean at each length is that of the samples cut there."""
    base = resolved(job(data))
    lengths = (64, 512, 4096)
    grid = estimate_grid(base, batch=(1, 4), length=lengths)
    assert grid.step_s is not None
    for row, batch in enumerate((1, 4)):
        for column, length in enumerate(lengths):
            single = resolved(job(data, batch=str(batch), seq=str(length)))
            answer = estimate(single, PRIORS, quick=True)
            assert answer.time is not None
            assert grid.must_have_bytes[row, column] == pytest.approx(float(answer.memory.must_have_bytes))
            assert grid.step_s[row, column] == pytest.approx(float(answer.time.step_s))


def test_a_mean_beside_the_data_is_refused(data: str) -> None:
    """Two answers to one question."""
    with pytest.raises(UsageError, match="--tokens-per-sample cannot be given beside it"):
        resolved(job(data, tokens_per_sample="100"))
