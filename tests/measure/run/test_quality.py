"""Whether a measurement is worth keeping, reason by reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from measure.run.quality import Evidence, drift, is_censored, judge
from planner.units import GIB

GOOD = Evidence(
    warmup_steps=3, counted_s=[1.0, 1.01, 0.99, 1.0, 1.0, 1.0], device_peak_bytes=50, device_bytes=100
)


def test_a_clean_run_is_good() -> None:
    """Enough steady steps on a free, cool card."""
    assert judge(GOOD) == ("good", ())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"warmup_steps": 1}, "too few steps"),
        ({"counted_s": [1.0] * 4}, "too few steps"),
        ({"counted_s": [1.0, 1.0, 1.04, 1.04, 1.08, 1.08]}, "drift by +8 %"),
        ({"counted_s": [1.08, 1.08, 1.04, 1.04, 1.0, 1.0]}, "drift by -7 %"),
        ({"counted_s": [1.0, 1.5, 1.0, 1.5, 1.0, 1.5]}, "spread"),
        ({"retries": 2}, "2 times"),
        ({"throttled": ("hardware slowdown",)}, "throttled: hardware slowdown"),
        ({"other_processes": 1}, "1 other processes on the device"),
        (
            {"other_processes": 1, "held_before_bytes": 2 * GIB},
            "1 other processes on the device; 2.00 GiB were in use",
        ),
        (
            {"other_processes": None, "held_before_bytes": 2 * GIB},
            "whom the driver does not name; 2.00 GiB were in use",
        ),
        ({"driver_asked": False}, "the driver said nothing"),
        ({"device_peak_bytes": 94}, "nearly full"),
    ],
)
def test_each_doubt_is_named(change: dict[str, object], reason: str) -> None:
    """One defect, one reason."""
    verdict, reasons = judge(replace(GOOD, **change))
    assert verdict == "doubtful"
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_memory_that_ran_out_is_a_finding() -> None:
    """An OOM has no steps to count and is a good record; a crash says nothing, and that is said."""
    without = replace(GOOD, warmup_steps=0, counted_s=[])
    assert judge(replace(without, outcome="oom")) == ("good", ())
    # The allocator always gives its cache back before it gives up, and the card is full then.
    assert judge(replace(without, outcome="oom", retries=1, device_peak_bytes=99)) == ("good", ())
    assert judge(replace(without, outcome="host_oom", throttled=("hardware slowdown",)))[0] == "doubtful"
    assert judge(replace(without, outcome="crash")) == (
        "doubtful",
        ("the run ended as crash: nothing follows about memory or speed",),
    )


def test_lengths_that_differ_are_no_spread() -> None:
    """Steps with different numbers of tokens may take different times."""
    assert judge(replace(GOOD, counted_s=[1.0, 2.0, 1.0, 2.0, 3.0], same_tokens=False))[0] == "good"


def test_censoring_needs_a_device() -> None:
    """Above 93 % of the card; unknown where there is none."""
    assert is_censored(GOOD) is False
    assert is_censored(replace(GOOD, device_bytes=None)) is None


def test_drift_compares_thirds() -> None:
    """Median of the last third over that of the first."""
    assert drift([1, 1, 5, 5, 2, 2]) == pytest.approx(1.0)
