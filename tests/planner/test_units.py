"""Sizes as people write them, and numbers as they are printed."""

from __future__ import annotations

import math

import pytest

from planner.units import (
    GIB,
    HOUR_S,
    KIB,
    MIB,
    MICRO_S,
    MILLI_S,
    MINUTE_S,
    format_bytes,
    format_count,
    format_gib,
    format_seconds,
    parse_size_bytes,
    plain_number,
)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("24GiB", 24 * 1024**3),
        ("80GB", 80 * 1000**3),
        (" 512 mib ", 512 * 1024**2),
        ("1.5t", 1_649_267_441_664),
        ("7k", 7168),
        ("0b", 0),
        ("2.5kb", 2500),
        ("1TB", 1000**4),
    ],
)
def test_a_size_has_a_binary_or_a_decimal_unit(text: str, n_bytes: int) -> None:
    """Bare letters are binary, as in docker and Slurm; case and spaces do not matter."""
    assert parse_size_bytes(text) == n_bytes


@pytest.mark.parametrize(
    "text", ["", "24", "GiB", "24 GiBs", "-1GiB", "1e3GiB", ".5GiB", "1,5GiB", "24GiB 1", "٣GiB"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    """No unit, no number, a sign, an exponent, a comma, other digits."""
    with pytest.raises(ValueError, match="is not a size: write a number and a unit, for example 24GiB"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (MIB, "1.0 MiB"),
        (GIB, "1.00 GiB"),
        (-3 * MIB, "-3.0 MiB"),
        (1.375 * GIB, "1.38 GiB"),
        (1890 * GIB, "1,890.00 GiB"),
    ],
)
def test_bytes_have_the_unit_that_keeps_them_readable(n_bytes: float, text: str) -> None:
    """The unit changes at its own size, and a sign is kept."""
    assert format_bytes(n_bytes) == text


def test_gib_stay_gib() -> None:
    """Columns are compared in one unit, and a thousand of them have no decimals."""
    assert [format_gib(size * GIB) for size in (999.99, 999.999, 1889.6)] == [
        "999.99 GiB",
        "1,000 GiB",
        "1,890 GiB",
    ]
    assert [format_gib(size) for size in (0, MIB, 14.0625 * GIB)] == ["0.00 GiB", "0.00 GiB", "14.06 GiB"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(999, "999"), (1000, "1.00 K"), (393_216, "393.22 K"), (6.74e9, "6.74 B"), (-2e12, "-2.00 T"), (0, "0")],
)
def test_counts_are_decimal(number: float, text: str) -> None:
    """Parameters and tokens are counted in thousands."""
    assert format_count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.34, "340 ms"),
        (1, "1.00 s"),
        (119.99, "119.99 s"),
        (120, "2 min 00 s"),
        (425, "7 min 05 s"),
        (3599.6, "1 h 00 min"),
        (11_520, "3 h 12 min"),
        (3_600_000, "1,000 h 00 min"),
        (math.inf, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    """Minutes begin at two, and what rounds to an hour is one."""
    assert format_seconds(seconds) == text


def test_a_whole_number_has_no_decimal_point() -> None:
    """As it would be typed."""
    assert [plain_number(each) for each in (4096, 4096.0, 0.5, 1e6)] == ["4096", "4096", "0.5", "1000000"]


def test_a_second_is_a_thousand_and_a_million_parts_of_itself() -> None:
    """And an hour has sixty times sixty of them."""
    assert (1000 * MILLI_S, 1_000_000 * MICRO_S, HOUR_S / MINUTE_S) == (1.0, 1.0, 60)
