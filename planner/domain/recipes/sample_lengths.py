"""How long the samples of a data set are: a table, the mean sample, and the longest of a batch.

The arithmetic takes numbers and arrays (of caps and of draws) alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.domain.recipes.recipe import Number

# Lengths that differ by less share a row of the table, which holds their mean.
_ROW_WIDTH = 1.01


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest of some sequences: its mean in tokens, and its standard deviation over that mean."""

    tokens: Number
    spread: Number


@dataclass(frozen=True, slots=True)
class SampleLengths:
    """``counts[i]`` sequences have ``tokens[i]`` tokens, in ascending order.

    ``drops_long``: those above the sequence length are left out, not cut, as the stack does it.
    """

    tokens: tuple[float, ...]
    counts: tuple[int, ...]
    drops_long: bool = False

    @classmethod
    def of(cls, lengths: Iterable[int]) -> SampleLengths:
        """The table of these lengths in tokens, each at least 1;
        those within 1 % of each other share a row.  The longest, which decides the peak, has its own.
        """
        counted = Counter(lengths)
        longest = max(counted, default=0)
        rows: dict[float, list[int]] = {}
        for length, count in counted.items():
            number = math.inf if length == longest else int(math.log(length) / math.log(_ROW_WIDTH))
            row = rows.setdefault(number, [0, 0])
            row[0] += length * count
            row[1] += count
        ordered = [rows[number] for number in sorted(rows)]
        return cls(tuple(total / count for total, count in ordered), tuple(count for _, count in ordered))

    @property
    def n_sequences(self) -> int:
        """Sequences in the data set."""
        return sum(self.counts)

    def kept(self, cap: Number) -> Number:
        """Sequences that are trained on where none may be longer than ``cap`` tokens."""
        kept: Number = 0
        for _, count in self._rows(cap):
            kept = kept + count
        return kept

    def mean_tokens(self, cap: Number) -> Number:
        """Mean tokens of a sequence where none is longer than ``cap``; the cap where none is left."""
        total: Any = 0.0
        for tokens, count in self._rows(cap):
            total = total + tokens * count
        mean: Number = _or_cap(total, self.kept(cap), cap)
        return mean

    def longest(self, cap: Number, draws: Number) -> Longest:
        """The longest of ``draws`` sequences, none above ``cap`` tokens.

        Formula: the sum over rows of ``tokens x (F^d - G^d)``:
        ``F`` is the share of sequences up to the row, ``G`` before it.
        Source: order statistics, Arnold, Balakrishnan and Nagaraja,
        "A First Course in Order Statistics", 2.2.
        Ignored: that samples are drawn without putting back.
        """
        kept: Any = self.kept(cap)
        mean: Any = 0.0
        square: Any = 0.0
        seen: Any = 0
        before: Any = 0.0
        for tokens, count in self._rows(cap):
            seen = seen + count
            below = (seen / (kept + (kept == 0))) ** draws
            mean, square = mean + tokens * (below - before), square + tokens * tokens * (below - before)
            before = below
        mean = _or_cap(mean, kept > 0, cap)
        return Longest(mean, abs(square / (mean * mean) - (kept > 0)) ** 0.5)

    def length_within(self, share: float, cap: float, draws: float) -> float:
        """Tokens that the longest of ``draws`` sequences, none above ``cap``,
        stays within in this share of the batches.
        """
        wanted, seen = share ** (1 / draws) * float(self.kept(cap)), 0.0
        for tokens, count in self._rows(cap):
            seen += float(count)
            if seen >= wanted:
                return float(tokens)
        return cap

    def _rows(self, cap: Any) -> Iterator[tuple[Any, Any]]:
        """(tokens, sequences) of each row, cut at the cap or left out above it."""
        for tokens, count in zip(self.tokens, self.counts, strict=True):
            is_above = cap < tokens
            yield tokens + (cap - tokens) * is_above, count * (1 - is_above) if self.drops_long else count


def _or_cap(total: Any, kept: Any, cap: Any) -> Any:
    """``total / kept``, and the cap where nothing is kept."""
    none = kept == 0
    return total / (kept + none) + cap * none
