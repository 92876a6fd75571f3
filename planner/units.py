"""Unit constants, parsing and formatting.

Inside the package every quantity is in base units: bytes (int), seconds (float), FLOP (a count),
FLOP per second (a rate), tokens, US dollars.  Powers of 2 and 10 live in this module alone.
"""

from __future__ import annotations

import math
import re
from typing import SupportsFloat

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
NO_DECIMALS_GIB = 999.995
"""From so many GiB on, decimals say nothing."""

KILO = 1_000
MEGA = 1_000 * KILO
GIGA = 1_000 * MEGA
TERA = 1_000 * GIGA

MILLI_S = 1.0 / KILO
MICRO_S = 1.0 / MEGA
MINUTE_S = 60
HOUR_S = 60 * MINUTE_S

_SIZE_UNITS = {
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024 * GIB,
    "kb": KILO,
    "mb": MEGA,
    "gb": GIGA,
    "tb": TERA,
    # Bare letters are what people type on a command line; they mean the binary unit, as in docker and slurm.
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": 1024 * GIB,
}
_SIZE_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


def parse_size_bytes(text: str) -> int:
    """Bytes meant by a size such as ``24GiB``, ``512 MiB``, ``80GB`` or ``1.5t``.

    Raises:
        ValueError: no unit, an unknown unit, or not a number.
    """
    match = _SIZE_PATTERN.fullmatch(text)
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError(f"'{text}' is not a size: write a number and a unit, for example 24GiB or 80GB")
    return round(float(match[1]) * _SIZE_UNITS[match[2].lower()])


def format_gib(n_bytes: float) -> str:
    """``n_bytes`` as GiB with two decimals, such as ``14.06 GiB``; ``1,487 GiB`` where they say nothing."""
    size = n_bytes / GIB
    return f"{size:,.{0 if abs(size) >= NO_DECIMALS_GIB else 2}f} GiB"


def format_bytes(n_bytes: float) -> str:
    """``n_bytes`` in the binary unit that keeps it readable: B, KiB, MiB or GiB."""
    size = abs(n_bytes)
    if size >= GIB:
        return f"{n_bytes / GIB:,.2f} GiB"
    if size >= MIB:
        return f"{n_bytes / MIB:.1f} MiB"
    if size >= KIB:
        return f"{n_bytes / KIB:.1f} KiB"
    return f"{n_bytes:.0f} B"


def plain_number(value: SupportsFloat) -> str:
    """A size as the user would type it: whole numbers without a decimal point."""
    number = float(value)
    return f"{number:.0f}" if number.is_integer() else f"{number:g}"


def format_count(n: float) -> str:
    """A plain count with a decimal (never binary) suffix: ``6.74 B`` parameters, ``393.2 K`` tokens."""
    for limit, suffix in ((TERA, "T"), (GIGA, "B"), (MEGA, "M"), (KILO, "K")):
        if abs(n) >= limit:
            return f"{n / limit:.2f} {suffix}"
    return f"{n:.0f}"


def format_seconds(seconds: float) -> str:
    """A duration for people: ``340 ms``, ``2.41 s``, ``7 min 05 s``, ``3 h 12 min``."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 1:
        return f"{seconds / MILLI_S:.0f} ms"
    if seconds < 2 * MINUTE_S:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S:02d} s"
    return f"{whole // HOUR_S:,} h {whole % HOUR_S // MINUTE_S:02d} min"
