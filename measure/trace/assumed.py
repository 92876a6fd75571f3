"""What a trace took for granted, as its report and its JSON list it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assumed:
    """Something that was assumed, how often, and where it was asked for.  ``name`` says what,
    ``value`` what was taken for it.
    """

    name: str
    value: str
    origin: str
    note: str = ""
