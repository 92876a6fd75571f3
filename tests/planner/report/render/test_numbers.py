"""Numbers as they are printed."""

from __future__ import annotations

import math

import pytest

from planner.report.render.numbers import chance_text, duration, duration_range, gib, percent, rate


def test_bytes_are_printed_as_gib_of_two_to_the_thirty() -> None:
    """One GiB is 2^30 bytes; what would round to nothing is said to be small, and nothing at all is zero."""
    assert gib(2**30) == "1.00"
    assert gib(10**9) == "0.93"
    assert gib(1) == "<0.01"
    assert gib(0) == "0.00"
    assert (gib(999.99 * 2**30), gib(2584.95 * 2**30)) == ("999.99", "2,585")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0412, "0.0412"),
        (3.2149, "3.21"),
        (99.96, "100.0"),
        (2931.4, "2,931"),
        (0, "0.00"),
        (math.inf, "unknown"),
    ],
)
def test_rates_have_three_significant_digits(value: float, text: str) -> None:
    """Small rates keep their digits, large ones get thousands separators, an infinite one is unknown."""
    assert rate(value) == text


def test_percent_never_shows_something_as_nothing() -> None:
    """A share that is not zero is not printed as zero."""
    assert percent(0.314) == "31.4 %"
    assert percent(0.0001) == "<0.1 %"
    assert percent(0.0) == "0.0 %"


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (1.0, "> 99 %"),
        (0.995, "> 99 %"),
        (0.99, "99 %"),
        (0.9499, "94 %"),
        (0.29, "29 %"),
        (0.051, "6 %"),
        (0.01, "1 %"),
        (0.004, "< 1 %"),
        (0.0, "< 1 %"),
    ],
)
def test_chances_are_rounded_towards_doubt(probability: float, text: str) -> None:
    """Neither certainty nor an edge is reached by rounding: 94.99 % is not the 95 % from which a job fits."""
    assert chance_text(probability) == text


def test_two_durations_share_their_unit() -> None:
    """The unit stands once where both have the same."""
    assert duration_range(0.573, 0.962) == "573 to 962 ms"
    assert duration_range(0.85, 1.2) == "850 ms to 1.20 s"
    assert duration_range(3600, 7200) == "1 h 00 min to 2 h 00 min"
    assert duration_range(108.16, 140) == "108.16 s to 2 min 20 s"
    assert duration(3_600_000) == "1,000 h 00 min"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0000412, "0.0412 ms"), (0.0621, "62.1 ms"), (4.814, "4.81 s"), (3600.0, "1 h 00 min")],
)
def test_short_durations_keep_their_digits(seconds: float, text: str) -> None:
    """What takes less than a millisecond is not printed as nothing."""
    assert duration(seconds) == text
