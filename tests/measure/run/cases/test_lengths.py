"""Lengths of the batches of a run, drawn from what is said of the data."""

from __future__ import annotations

from dataclasses import replace

from measure.run.cases.lengths import plan_batches
from planner.domain.recipes.recipe import Batch
from planner.domain.recipes.sample_lengths import SampleLengths


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


def test_a_data_set_is_drawn_from_its_own_lengths() -> None:
    """Three samples of four are short; the long ones are cut at the cap or left out, as the stack does it."""
    table = SampleLengths.of([100] * 75 + [600] * 20 + [5000] * 5)
    for drops_long, longest, allowed in ((False, 1000, {100, 600, 1000}), (True, 600, {100, 600})):
        given = batch(lengths=replace(table, drops_long=drops_long), tokens_per_sample=245)
        planned = [plan_batches(given, (), seed) for seed in range(20)]
        assert {each[0].lengths for each in planned} == {(longest,) * 4}
        lengths = [n for each in planned for micro in each[2:] for n in micro.lengths]
        assert set(lengths) == allowed
        kept = [min(n, 1000) for n in [100] * 75 + [600] * 20 + [5000] * 5 if n <= 1000 or not drops_long]
        assert abs(sum(lengths) / len(lengths) / (sum(kept) / len(kept)) - 1) < 0.1
