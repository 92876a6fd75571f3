"""Many comparisons in a few numbers.  All errors are fractions; 0.1 is 10 %."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from planner.calibration.score.rows import Comparison, OomResult

NamedComparison = tuple[str, Comparison]


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of one quantity.

    ``mape``: mean of the absolute relative errors.  ``median_signed``: median of the relative
    errors; positive: too much was predicted.  ``max_abs``: largest absolute relative error, that of
    ``worst_row``.  ``quantities``: what was compared, with how many rows.  ``groups``: over how many source
    groups ``mape`` and ``median_signed`` are averaged (1: over rows).
    """

    n: int
    mape: float
    median_signed: float
    max_abs: float
    worst_row: str
    quantities: tuple[tuple[str, int], ...]
    groups: int = 1


@dataclass(frozen=True, slots=True)
class BoundSummary:
    """Predictions against an upper bound: ``ok`` of ``n`` are not above it;
    ``max_excess`` is the largest excess over it.
    """

    n: int
    ok: int
    max_excess: float
    worst_row: str


@dataclass(frozen=True, slots=True)
class OomSummary:
    """Verdicts on GPU memory.  ``n_oom`` rows ran out, ``n_ok`` ran;
    ``no_verdict`` of them are on cards of unknown memory.
    """

    n_oom: int
    n_ok: int
    false_fit: int
    false_oom: int
    uncertain_ok: int
    uncertain_oom: int
    no_verdict: int


def summarise(rows: Iterable[NamedComparison]) -> ErrorSummary | None:
    """Errors of (row id, comparison) pairs; ``None`` where there are none."""
    pairs = list(rows)
    if not pairs:
        return None
    errors = [comparison.error for _, comparison in pairs]
    worst_id, worst = max(pairs, key=lambda pair: abs(pair[1].error))
    return ErrorSummary(
        n=len(pairs),
        mape=fmean(map(abs, errors)),
        median_signed=median(errors),
        max_abs=abs(worst.error),
        worst_row=worst_id,
        quantities=tuple(Counter(comparison.quantity for _, comparison in pairs).most_common()),
    )


def average(summaries: Sequence[ErrorSummary]) -> ErrorSummary | None:
    """Unweighted mean over groups, so that a document with many rows does not drown the others;
    ``None`` without groups.
    """
    if not summaries:
        return None
    worst = max(summaries, key=lambda each: each.max_abs)
    counts: Counter[str] = Counter()
    for each in summaries:
        counts.update(dict(each.quantities))
    return ErrorSummary(
        n=sum(each.n for each in summaries),
        mape=fmean(each.mape for each in summaries),
        median_signed=fmean(each.median_signed for each in summaries),
        max_abs=worst.max_abs,
        worst_row=worst.worst_row,
        quantities=tuple(counts.most_common()),
        groups=len(summaries),
    )


def summarise_bounds(rows: Iterable[NamedComparison]) -> BoundSummary | None:
    """Predictions against bounds; ``None`` where there are none."""
    pairs = list(rows)
    if not pairs:
        return None
    worst_id, worst = max(pairs, key=lambda pair: pair[1].error)
    within = sum(comparison.predicted <= comparison.measured for _, comparison in pairs)
    return BoundSummary(len(pairs), within, max(worst.error, 0.0), worst_id)


def count_verdicts(rows: Iterable[tuple[bool, OomResult]]) -> OomSummary:
    """Confusion of (ran out of GPU memory, what the verdict was worth) pairs."""
    pairs = list(rows)
    results = Counter(result for _, result in pairs)
    n_oom = sum(ran_out for ran_out, _ in pairs)
    return OomSummary(
        n_oom=n_oom,
        n_ok=len(pairs) - n_oom,
        false_fit=results["false_fit"],
        false_oom=results["false_oom"],
        uncertain_ok=results["uncertain_ok"],
        uncertain_oom=results["uncertain_oom"],
        no_verdict=results["no_verdict"],
    )
