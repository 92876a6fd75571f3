"""Amounts that grow with tokens and keys, and the largest of several of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from planner.arrays import maximum
from planner.domain.recipe import Number


class Line(NamedTuple):
    """``tokens * (features + keys * pair) + fixed`` bytes, for the tokens and keys that a layer is asked about."""

    features: Number
    pair: Number
    fixed: Number

    def at(self, tokens: Number, keys: Number) -> Number:
        """Bytes for ``tokens`` tokens that each attend to ``keys`` keys."""
        return tokens * (self.features + keys * self.pair) + self.fixed


def highest(lines: tuple[Line, ...], tokens: Number, keys: Number) -> Number:
    """The most bytes that one of ``lines`` comes to."""
    return maximum(*[tokens * (features + keys * pair) + fixed for features, pair, fixed in lines])


def upper(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines without those that another one is never below, whatever the tokens and keys; plain numbers only."""
    kept: list[Line] = []
    for line in lines:
        if not any(_covers(other, line) for other in kept):
            kept = [other for other in kept if not _covers(line, other)] + [line]
    return tuple(kept)


def _covers(high: Line, low: Line) -> bool:
    return bool(high.features >= low.features and high.pair >= low.pair and high.fixed >= low.fixed)
