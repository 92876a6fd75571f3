"""Numbers and names as the report prints them.  Quantities come in base units; memory is printed in GiB."""

from __future__ import annotations

import math

from planner.domain.recipes.recipe import Number
from planner.units import GIB, MILLI_S, NO_DECIMALS_GIB, format_seconds

_SMALLEST_SHOWN_GIB = 0.005


def gib(n_bytes: Number) -> str:
    """Bytes as GiB with two decimals and no unit: ``7.41``; ``<0.01`` for what would round to nothing,
    ``1,487`` where decimals would say nothing.
    """
    size = float(n_bytes) / GIB
    if size >= NO_DECIMALS_GIB:
        return f"{size:,.0f}"
    return "<0.01" if 0 < size < _SMALLEST_SHOWN_GIB else f"{size:.2f}"


def percent(fraction: float) -> str:
    """A fraction as per cent with one decimal, ``31.4 %``; ``<0.1 %`` for what would round to nothing."""
    return "<0.1 %" if 0 < fraction < 0.0005 else f"{100 * fraction:.1f} %"


def whole_percent(fraction: float) -> str:
    """A fraction as whole per cent, rounded: ``38 %``."""
    return f"{100 * fraction:.0f} %"


def chance_text(probability: float) -> str:
    """A probability as whole per cent, rounded towards doubt: ``97 %``; never ``100 %`` but ``> 99 %``,
    and ``< 1 %``.
    """
    if probability > 0.99:
        return "> 99 %"
    if probability < 0.01:
        return "< 1 %"
    # A probability such as 0.29 is a hair off its hundredth in binary.
    exact = round(100 * probability, 6)
    return f"{math.floor(exact) if exact > 50 else math.ceil(exact)} %"


def rate(per_second: Number) -> str:
    """A rate with three significant digits, and thousands separated: ``0.412``, ``3.21``, ``2,931``."""
    value = float(per_second)
    if not math.isfinite(value):
        return "unknown"
    if value >= 100:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 2
    return f"{value:.{min(max(digits, 0), 6)}f}"


def duration(seconds: Number) -> str:
    """A duration for people, with three significant digits below a second: ``0.412 ms``,
    ``62.1 ms``, ``4.81 s``.
    """
    value = float(seconds)
    return f"{rate(value / MILLI_S)} ms" if value < 1 else format_seconds(value)


def duration_range(low_s: float, high_s: float) -> str:
    """Two durations with their unit once where both have the same:
    ``573 to 962 ms``, ``850 ms to 1.20 s``.
    """
    low, high = duration(low_s), duration(high_s)
    number, _, unit = low.rpartition(" ")
    in_one_unit = low.count(" ") == high.count(" ") == 1 and high.endswith(f" {unit}")
    return f"{number if in_one_unit else low} to {high}"
