"""Lengths of the batches of a run, drawn from what is said of the data."""

from __future__ import annotations

from dataclasses import replace

from measure.run.cases.lengths import plan_batches
from planner.domain.recipes.recipe import Batch


def batch(**changes: object) -> Batch:
    """Four rows of 1,000 tokens."""
    return replace(
        Batch(micro_batch=4, grad_accum=1, seq_len=1000, padding="longest", tokens_per_sample=1000), **changes
    )


def test_full_samples_need_one_micro_batch() -> None:
    """Samples as long as the cap, and packed ones, are all alike."""
    for same in (batch(), batch(padding="packed", tokens_per_sample=10)):
        (only,) = plan_batches(same, (), 0)
        assert (only.real_tokens, only.padded_tokens) == (4000, 4000)


def test_drawn_lengths_follow_their_quantiles() -> None:
    """Lengths stay within the law, the worst batch is first, and padding is to the longest or to the cap."""
    planned = plan_batches(batch(), (100, 300, 900), 0)
    lengths = [length for each in planned[1:] for length in each.lengths]
    assert planned[0].lengths == (900,) * 4
    assert min(lengths) >= 100
    assert max(lengths) <= 900
    assert 300 < sum(lengths) / len(lengths) < 500
    assert all(each.width_tokens == max(each.lengths) for each in planned)
    assert {each.width_tokens for each in plan_batches(batch(padding="max_length"), (100, 900), 0)} == {1000}
    assert planned == plan_batches(batch(), (100, 300, 900), 0)


def test_a_mean_is_drawn_around_itself() -> None:
    """Without quantiles the lengths spread evenly around the mean and never pass the cap."""
    planned = plan_batches(batch(tokens_per_sample=800), (), 0)
    lengths = [length for each in planned[1:] for length in each.lengths]
    assert min(lengths) >= 600
    assert max(lengths) <= 1000
    assert 750 < sum(lengths) / len(lengths) < 850
