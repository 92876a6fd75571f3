"""Time of micro-steps whose lengths differ: when the host shows, what narrow heads cost,
and how unsure it all is.
"""

from __future__ import annotations

from math import exp
from statistics import fmean, pstdev

import numpy as np
import pytest

from planner.anatomy.natural_lengths import cut_law, longest_sample
from planner.domain.recipes.recipe import Batch
from planner.domain.recipes.sample_lengths import Longest
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.coefficients import Coefficients
from planner.intake.given.request import from_flags
from planner.intake.resolve import resolve
from planner.program.ops.work import FusedAttention
from planner.throughput.kernel_time import attention_seconds
from planner.throughput.step_time import both_busy_seconds, predict_time
from planner.throughput.time_inputs import TimedJob, job_of

PRIORS = Coefficients()
NATURAL = {
    "model": "qwen2.5-1.5b",
    "method": "lora",
    "gpu": "a100-80-sxm",
    "seq": "2048",
    "batch": "1",
    "padding": "longest",
    "tokens_per_sample": "1000",
}


def scenario(**changes: str) -> Scenario:
    """A job on samples of natural length."""
    return resolve(from_flags({**NATURAL, **changes}))


def job(the_scenario: Scenario) -> TimedJob:
    """Its job, which must exist."""
    found = job_of(the_scenario, PRIORS)
    assert found is not None
    return found


def longest_of(mean: float, cap: int, draws: int, variation: float) -> Longest:
    """The longest of samples of that mean, none above ``cap``."""
    batch = Batch(draws, 1, cap, "longest", mean)
    return longest_sample(batch, draws, variation, drops_long=False)


class TestKernelsAndHost:
    """How long both are busy at once."""

    @pytest.mark.parametrize("host_s", [0.2, 1.0, 3.0])
    def test_equal_lengths_leave_the_shorter_of_both(self, host_s: float) -> None:
        """Without spread it is the minimum."""
        assert both_busy_seconds(1.0, host_s, 1.0, 0.0) == pytest.approx(min(1.0, host_s))

    @pytest.mark.parametrize("host_s", [0.1, 0.7, 1.0, 1.4, 5.0])
    def test_it_is_the_mean_over_times_spread_evenly(self, host_s: float) -> None:
        """The mean of min(kernels, host) over a million kernel times, evenly between 0.6 and 1.4 seconds."""
        kernels = np.linspace(0.6, 1.4, 1_000_001)
        spread = pstdev([0.6, 1.4]) / 3**0.5
        assert both_busy_seconds(1.0, host_s, 1.0, spread) == pytest.approx(
            np.minimum(kernels, host_s).mean(), rel=1e-5
        )

    def test_no_kernel_takes_less_than_no_time(self) -> None:
        """However much lengths differ: times reach from 0 to twice the mean at most."""
        assert both_busy_seconds(1.0, 1.0, 1.0, 5.0) == pytest.approx(0.75)

    def test_a_grid_is_answered_like_its_points(self) -> None:
        """Arrays give what numbers give."""
        hosts = np.array([0.2, 1.0, 3.0])
        found = both_busy_seconds(1.0, hosts, 0.8, 0.4)
        assert list(found) == pytest.approx([both_busy_seconds(1.0, float(host), 0.8, 0.4) for host in hosts])

    def test_uneven_lengths_let_the_host_show(self) -> None:
        """Where kernels and host take about as long,
        a step of natural lengths is longer than one of equal ones of that mean.
        """
        uneven, even = scenario(model="qwen2.5-3b"), scenario(model="qwen2.5-3b", seq="1000")
        natural, packed = predict_time(uneven, PRIORS), predict_time(even, PRIORS)
        assert natural is not None
        assert packed is not None
        assert natural.step_s > 1.05 * packed.step_s


class TestSpreadOfLengths:
    """Standard deviation over mean of the longest sample of a batch."""

    def test_one_draw_below_the_cap(self) -> None:
        """An exponential that starts at 0.25 and is cut at ``t`` has the mean square 2 (1 - (1 + t) e^-t)
        above its start, and the mean 1 - e^-t.
        """
        law = cut_law(Batch(1, 1, 2048, "longest", 1024), 1, 0.8, drops_long=False)
        mean = 1 - exp(-law.end)
        square = 2 * (1 - (1 + law.end) * exp(-law.end))
        assert law.start == pytest.approx(0.25)
        assert (0.25 + mean) / (0.25 + law.end) == pytest.approx(0.5)
        spread = (square - mean**2) ** 0.5 / (0.25 + mean)
        assert longest_of(1024, 2048, 1, 0.8).spread == pytest.approx(spread, rel=2e-3)

    def test_far_below_the_cap(self) -> None:
        """One draw has the variation of the samples."""
        assert longest_of(10, 100_000, 1, 0.8).spread == pytest.approx(0.8, rel=5e-3)

    def test_samples_that_fill_the_length_have_none(self) -> None:
        """All are as long as the cap."""
        assert longest_of(2048, 2048, 4, 0.8).spread == 0

    @pytest.mark.parametrize(("mean", "cap"), [(1024, 2048), (300, 8192)])
    def test_the_longest_of_many_varies_less(self, mean: int, cap: int) -> None:
        """More draws, less spread."""
        spreads = [float(longest_of(mean, cap, draws, 0.8).spread) for draws in (1, 2, 8, 64)]
        assert spreads == sorted(spreads, reverse=True)
        assert fmean(spreads) > 0


def test_narrow_heads_are_slower() -> None:
    """Fused attention with heads of 64 features reaches 0.9 of the rate of 128; wider heads gain nothing."""
    held = job(scenario(model="qwen2.5-0.5b"))
    narrow, usual, wide = (
        attention_seconds(held, FusedAttention("flash", width, "triangle"), 1.0, held.values)
        for width in (64, 128, 256)
    )
    assert usual / narrow == pytest.approx(0.905, abs=0.001)
    assert wide == usual
