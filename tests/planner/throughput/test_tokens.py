"""Time of micro-steps whose lengths differ: when the host shows, what narrow heads cost,
and how unsure it all is.
"""

from __future__ import annotations

from statistics import pstdev

import numpy as np
import pytest

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


def test_narrow_heads_are_slower() -> None:
    """Fused attention with heads of 64 features reaches 0.9 of the rate of 128; wider heads gain nothing."""
    held = job(scenario(model="qwen2.5-0.5b"))
    narrow, usual, wide = (
        attention_seconds(held, FusedAttention("flash", width, "triangle"), 1.0, held.values)
        for width in (64, 128, 256)
    )
    assert usual / narrow == pytest.approx(0.905, abs=0.001)
    assert wide == usual
