"""The accuracy that is aimed at, beside what is reached: every line with its target,
in-sample and held out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

import numpy as np

from planner.calibration.intervals.coverage import Held, held_out
from planner.calibration.score.cross_validate import CrossValidation
from planner.calibration.score.ranking import joined, rank_agreement
from planner.calibration.score.rows import Comparison, RowScore
from planner.calibration.score.validate import MIN_GROUP_ROWS, offloads
from planner.domain.uncertainty.interval import SpreadOf
from tests.accuracy.aims import Fit, stored_aims
from tests.accuracy.anchors import AnchorGain
from tests.accuracy.kinds import QUANTITIES as KIND_QUANTITIES
from tests.accuracy.kinds import KindCoverage, kind_coverage

_MEMORY_LEVELS: tuple[SpreadOf, ...] = ("allocated", "reserved", "driver")
_OTHERS = "other grade-A sources"
# Rules of the fit that say that a time is not what the record says it is, or is there twice.
_UNCLEAR = frozenset({"impossible_rate", "loop_time", "clock_locked", "repeat", "duplicate"})


@dataclass(frozen=True, slots=True)
class Goal:
    """One line: what, under which fit, over ``n`` rows (or pairs, or sources); all figures are fractions.

    ``low`` and ``high`` are the target's bounds, ``None`` where there is none;
    a line without both is shown for comparison.
    """

    title: str
    fit: str
    n: int
    reached: float
    high: float | None = None
    low: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; ``None`` without one."""
        if self.high is None and self.low is None:
            return None
        return (self.low is None or self.reached >= self.low) and (
            self.high is None or self.reached <= self.high
        )

    @property
    def key(self) -> str:
        """What and under which fit."""
        return f"{self.title}, {self.fit}"

    @property
    def rounded(self) -> float:
        """What is reached, to a thousandth, or finer where that hides on which side of the target it lies."""
        for digits in (3, 4, 5):
            rounded = round(self.reached, digits)
            if replace(self, reached=rounded).met == self.met:
                return rounded
        return self.reached

    def better(self, first: float, second: float) -> float:
        """The one of two figures that is nearer to the target, or beyond it;
        the lower one where there is none.
        """
        return min(first, second, key=self.shortfall)

    def shortfall(self, reached: float) -> float:
        """By how much a figure misses the target, and below 0 by how much it is beyond it."""
        if self.low is not None and self.high is not None:
            return max(self.low - reached, reached - self.high, 0.0)
        return self.low - reached if self.low is not None else reached - (self.high or 0.0)

    @property
    def target(self) -> str:
        """The target in words, ``<= 6 %`` or ``86 to 94 %``."""
        if self.low is not None and self.high is not None:
            return f"{self.low:.0%} to {self.high:.0%}".replace("%", " %")
        if self.high is not None:
            return f"<= {self.high:.0%}".replace("%", " %")
        return "" if self.low is None else f">= {self.low:.0%}".replace("%", " %")


def percent_text(share: float) -> str:
    """One digit after the point, or as many as the figure has:
    a goal has more where one would hide that it is missed.
    """
    percent = 100 * share
    digits = next((digits for digits in (1, 2) if abs(round(percent, digits) - percent) < 1e-9), 3)
    return f"{percent:.{digits}f}%"


def goals(result: CrossValidation, anchors: Sequence[AnchorGain]) -> tuple[Goal, ...]:
    """Every line that the records say something about,
    in the order in which the targets are listed in the README.
    """
    fits: dict[Fit, Sequence[RowScore]] = {
        "in-sample": result.in_sample.rows,
        "held out": result.held_out.rows,
    }
    unclear = frozenset(each.record_id for each in result.fitted.left_out if each.rule in _UNCLEAR)
    return (
        *(goal for fit, rows in fits.items() for goal in _memory(fit, rows)),
        *_throughput(result.held_out.rows, unclear),
        *_anchored(anchors, result.held_out.rows),
        *_ranks(result.held_out.rows),
        *(goal for fit, rows in fits.items() for goal in _others_memory(fit, rows)),
        *_others_throughput(result.held_out.rows, unclear),
        *(goal for fit, rows in fits.items() for goal in _verdicts(fit, rows)),
        *_intervals(held_out(result.fitted.residuals), _named_groups(result.held_out.rows)),
        *_kinds(kind_coverage(result)),
        *_uncertain(result.held_out.rows),
        *(goal for fit, rows in fits.items() for goal in _host(fit, rows)),
    )


def _memory(fit: Fit, rows: Sequence[RowScore]) -> Iterable[Goal]:
    aims = stored_aims().errors(fit)
    errors = _errors(rows, _has_aims, _peak)
    yield from _mean("four reports, peak memory, mean error", fit, errors, aims.memory)
    if errors:
        worse, target = float(np.quantile(errors, 0.9)), stored_aims().held_out.memory_90th_percentile
        high = target if fit == "held out" else None
        yield Goal("four reports, peak memory, 90th percentile", fit, len(errors), worse, high)
    for name, target in aims.memory_of.items():
        yield from _mean(f"{name}, peak memory, mean error", fit, _errors(rows, _of(name), _peak), target)


def _mean(title: str, fit: str, errors: Sequence[float], high: float | None) -> Iterable[Goal]:
    if errors:
        yield Goal(title, fit, len(errors), fmean(errors), high)


def _throughput(rows: Sequence[RowScore], unclear: frozenset[str]) -> Iterable[Goal]:
    """Unambiguous rows: not of grade C, and with a time that the fit does not refuse.
    Those that offload are apart.
    """
    fit = "held out"
    clear = [
        row for row in rows if _has_aims(row) and row.record.grade != "C" and row.record.id not in unclear
    ]
    apart = _errors(clear, offloads, _time)
    errors = _errors(clear, lambda row: not offloads(row), _time)
    yield from _mean("four reports, throughput, mean error, without offload", fit, errors, None)
    for name, target in stored_aims().held_out.throughput_of.items():
        mine = _errors([row for row in clear if _of(name)(row)], lambda row: not offloads(row), _time)
        yield from _mean(f"{name}, throughput, mean error, without offload", fit, mine, target)
    yield from _mean("four reports, throughput, mean error, offload apart", fit, apart, None)


def _anchored(anchors: Sequence[AnchorGain], rows: Sequence[RowScore]) -> Iterable[Goal]:
    """Throughput of a held-out group after one row of its machine: the median over the choice of row."""
    fit, target = "held out, one anchor row", stored_aims().predictive.throughput_with_one_row
    names = _named_groups(rows)
    grade_a = {row.record.source_group for row in rows if row.record.grade == "A"}
    for gain in anchors:
        if gain.group in names:
            yield Goal(f"{names[gain.group]}, throughput, mean error", fit, gain.n_rows, gain.after, target)
    others = [gain.after for gain in anchors if gain.group not in names and gain.group in grade_a]
    if others:
        yield Goal(f"{_OTHERS}, throughput, macro-average of groups", fit, len(others), fmean(others), target)


def _ranks(rows: Sequence[RowScore]) -> Iterable[Goal]:
    target = stored_aims().predictive.pairs_in_order
    for title, pick in _PICKS.items():
        found = {name: rank_agreement(_comparisons(rows, _of(name), pick)) for name in stored_aims().sources}
        pooled = joined(found.values())
        named = {
            f"four reports, {title}": pooled,
            **{f"{document}, {title}": each for document, each in found.items()},
        }
        for name, each in named.items():
            if each is not None:
                yield Goal(
                    f"{name}, pairs in the right order", "held out", each.n_pairs, each.share, low=target
                )


def _others_memory(fit: Fit, rows: Sequence[RowScore]) -> Iterable[Goal]:
    yield from _macro_average("peak memory", fit, rows, stored_aims().errors(fit).others_memory)


def _others_throughput(rows: Sequence[RowScore], unclear: frozenset[str]) -> Iterable[Goal]:
    """Times that the fit refuses are no part of it."""
    clear = [row for row in rows if row.record.id not in unclear]
    yield from _macro_average("throughput", "held out", clear, stored_aims().held_out.others_throughput)


def _macro_average(title: str, fit: Fit, rows: Sequence[RowScore], target: float) -> Iterable[Goal]:
    """Each source counts once, where it has at least three rows of grade A."""
    by_source: dict[str, list[float]] = {}
    for row in rows:
        comparison = None if _has_aims(row) or row.record.grade != "A" else _PICKS[title](row)
        if comparison is not None:
            by_source.setdefault(row.record.source, []).append(abs(comparison.error))
    means = [fmean(each) for each in by_source.values() if len(each) >= MIN_GROUP_ROWS]
    if means:
        yield Goal(f"{_OTHERS}, {title}, macro-average", fit, len(means), fmean(means), target)


def _verdicts(fit: str, rows: Sequence[RowScore]) -> Iterable[Goal]:
    mine = [row for row in rows if _has_aims(row) and row.oom is not None]
    if not mine:
        return
    aims = stored_aims().verdicts
    ran_out = [row for row in mine if row.record.outcome == "oom"]
    ran = [row for row in mine if row.record.outcome != "oom"]
    wrong = [row for row in mine if row.oom in ("false_fit", "false_oom")]
    false_fit, false_oom = (sum(row.oom == kind for row in mine) for kind in ("false_fit", "false_oom"))
    yield Goal(
        "four reports, ran out of memory and said to fit",
        fit,
        len(ran_out),
        false_fit / max(len(ran_out), 1),
        aims.said_to_fit,
    )
    yield Goal(
        "four reports, ran and said not to fit",
        fit,
        len(ran),
        false_oom / max(len(ran), 1),
        aims.said_not_to_fit,
    )
    furthest = max((_from_limit(row) for row in wrong), default=0.0)
    yield Goal(
        "four reports, furthest wrong verdict from the limit", fit, len(wrong), furthest, aims.from_limit
    )


def _from_limit(row: RowScore) -> float:
    memory = row.prediction.memory if row.prediction else None
    if memory is None or not memory.limit_bytes:
        return 0.0
    return abs(float(memory.must_have_bytes) / memory.limit_bytes - 1)


def _intervals(held: Sequence[Held], groups_of_reports: Mapping[str, str]) -> Iterable[Goal]:
    quantities: dict[Literal["memory", "time"], tuple[SpreadOf, ...]] = {
        "memory": _MEMORY_LEVELS,
        "time": ("time",),
    }
    low, high = stored_aims().predictive.inside_interval
    for name, kinds in quantities.items():
        half_width = stored_aims().predictive.half_width[name]
        mine = [each for each in held if each.residual.of in kinds]
        if not mine:
            continue
        yield Goal(f"{name}, inside the 90 % interval", "held out", len(mine), _inside(mine), high, low)
        sources = list(dict.fromkeys(each.residual.group for each in mine))
        by_source = fmean(
            _inside([each for each in mine if each.residual.group == group]) for group in sources
        )
        yield Goal(
            f"{name}, inside the 90 % interval, mean over sources",
            "held out",
            len(sources),
            by_source,
            high,
            low,
        )
        for kind in kinds if len(kinds) > 1 else ():
            level = [each for each in mine if each.residual.of == kind]
            if level:
                yield Goal(
                    f"{name} {kind}, inside the 90 % interval",
                    "held out",
                    len(level),
                    _inside(level),
                    high,
                    low,
                )
        off = fmean(abs(np.expm1(each.residual.log_ratio)) > half_width for each in mine)
        yield Goal(
            f"{name}, readings further off than {half_width:.0%}".replace("%", " %"),
            "held out",
            len(mine),
            off,
        )
        reports = [each for each in mine if each.residual.group in groups_of_reports]
        others = [each for each in mine if each.residual.group not in groups_of_reports]
        widths = {"": mine, "four reports, ": reports, "other sources, ": others}
        for prefix, part in widths.items():
            if part:
                half = median(each.half_width for each in part)
                yield Goal(f"{prefix}{name}, median half-width", "held out", len(part), half, half_width)


def _kinds(lines: Sequence[KindCoverage]) -> Iterable[Goal]:
    """Kinds of job left out whole: all their readings together,
    and the kind of at least three whose intervals hold fewest.
    """
    low, high = stored_aims().predictive.inside_interval
    for of in KIND_QUANTITIES:
        mine = [line for line in lines if line["of"] == of]
        if mine:
            n = sum(line["n"] for line in mine)
            pooled = sum(line["n"] * line["inside"] for line in mine) / n
            yield Goal(f"{of}, inside the 90 % interval, kinds left out", "held out", n, pooled, high, low)
        several = [line for line in mine if line["n"] >= MIN_GROUP_ROWS]
        if several:
            fewest = min(line["inside"] for line in several)
            aim = stored_aims().predictive.inside_each_kind
            yield Goal(
                f"{of}, inside the 90 % interval, worst kind", "held out", len(several), fewest, low=aim
            )


def _inside(held: Sequence[Held]) -> float:
    return fmean(each.inside for each in held)


def _uncertain(rows: Sequence[RowScore]) -> Iterable[Goal]:
    judged = [row for row in rows if row.oom not in (None, "no_verdict")]
    if judged:
        share = fmean(row.oom in ("uncertain_ok", "uncertain_oom") for row in judged)
        yield Goal(
            "verdict uncertain, all sources",
            "held out",
            len(judged),
            share,
            stored_aims().predictive.uncertain,
        )


def _host(fit: Fit, rows: Sequence[RowScore]) -> Iterable[Goal]:
    for name, target in stored_aims().errors(fit).host_memory_of.items():
        yield from _mean(f"{name}, host RAM, mean error", fit, _errors(rows, _of(name), _host_peak), target)
    for name, target in stored_aims().host_bound.above_installed_of.items():
        above = [
            row.host_bound.predicted > row.host_bound.measured
            for row in rows
            if _of(name)(row) and row.host_bound
        ]
        if above:
            yield Goal(f"{name}, host RAM above what was installed", fit, len(above), fmean(above), target)


def _errors(
    rows: Iterable[RowScore],
    belongs: Callable[[RowScore], bool],
    pick: Callable[[RowScore], Comparison | None],
) -> list[float]:
    return [abs(each.error) for each in _comparisons(rows, belongs, pick)]


def _comparisons(
    rows: Iterable[RowScore],
    belongs: Callable[[RowScore], bool],
    pick: Callable[[RowScore], Comparison | None],
) -> list[Comparison]:
    return [comparison for row in rows if belongs(row) and (comparison := pick(row)) is not None]


def _has_aims(row: RowScore) -> bool:
    """Whether the row is of a source with aims of its own."""
    return stored_aims().name_of(row.record.source) is not None


def _named_groups(rows: Iterable[RowScore]) -> dict[str, str]:
    """Names of the sources with aims of their own by their source group."""
    named = ((row.record.source_group, stored_aims().name_of(row.record.source)) for row in rows)
    return {group: name for group, name in named if name is not None}


def _of(name: str) -> Callable[[RowScore], bool]:
    source = stored_aims().sources[name]
    return lambda row: row.record.source == source


def _peak(row: RowScore) -> Comparison | None:
    return row.memory


def _time(row: RowScore) -> Comparison | None:
    return row.throughput


def _host_peak(row: RowScore) -> Comparison | None:
    return row.host_memory


_PICKS: Mapping[str, Callable[[RowScore], Comparison | None]] = {"peak memory": _peak, "throughput": _time}
