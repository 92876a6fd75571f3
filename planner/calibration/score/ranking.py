"""Whether predictions put configurations in the order in which they were measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from planner.calibration.score.rows import Comparison

# Pairs closer than this are a tie: repeated runs of one recipe differ by as much.
APART = 0.10


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """Of ``n_pairs`` pairs of rows of one document whose measurements lie more than 10 % apart,
    how many are ordered alike.
    """

    n_pairs: int
    n_right: int

    @property
    def share(self) -> float:
        """Share of pairs in the right order, a fraction."""
        return self.n_right / self.n_pairs


def rank_agreement(comparisons: Iterable[Comparison]) -> RankAgreement | None:
    """Agreement over the rows of one document; only the same quantity is compared; ``None`` without a pair.

    A pair that is predicted equal is not ordered, and so wrong.
    """
    right = [
        (first.measured > second.measured) == (first.predicted > second.predicted)
        and first.predicted != second.predicted
        for first, second in combinations(comparisons, 2)
        if first.quantity == second.quantity
        and max(first.measured, second.measured) > (1 + APART) * min(first.measured, second.measured)
    ]
    return RankAgreement(len(right), sum(right)) if right else None


def joined(agreements: Iterable[RankAgreement | None]) -> RankAgreement | None:
    """All pairs of several documents; pairs are never made across documents."""
    found = [each for each in agreements if each is not None]
    return (
        RankAgreement(sum(each.n_pairs for each in found), sum(each.n_right for each in found))
        if found
        else None
    )
