"""Regular expressions that people write into files and flags."""

from __future__ import annotations

import re

from planner.errors import UsageError, show

# A repetition of what repeats already can take for ever.
_NESTED = re.compile(r"[*+}][^()]*\)[*+{]")


def compiled(pattern: str, field: str) -> re.Pattern[str]:
    """An expression that ``field`` holds.

    Raises:
        UsageError: no regular expression, or one that may take for ever.
    """
    if _NESTED.search(pattern):
        raise UsageError(f"{field}: '{show(pattern)}' repeats a repetition: write it without")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise UsageError(f"{field}: '{show(pattern)}' is no regular expression") from None
