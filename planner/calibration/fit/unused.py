"""What a fit had and did not use: readings that teach nothing, numbers that too few readings speak of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.calibration.fit.problem import MIN_READINGS_PER_LEVEL, Problem
from planner.calibration.fit.screen import RULES, LeftOut, screen
from planner.calibration.fit.targets import MAX_SHARE_OF_PEAK, Target, is_impossible, predicted
from planner.calibration.score.rows import throughput_column
from planner.domain.run_record import NOT_ITS_MEMORY, NOT_ITS_TIME, RunRecord
from planner.domain.scenario import Scenario
from planner.domain.uncertainty.calibration import Knob
from planner.domain.uncertainty.coefficients import Coefficients
from planner.domain.uncertainty.hierarchy import FREEDOM
from planner.records import Quarantined

_DOUBTFUL = frozenset(
    {
        "below_weights",
        "duplicate",
        "repeat",
        "impossible_rate",
        *NOT_ITS_TIME,
        *NOT_ITS_MEMORY,
    }
)


@dataclass(frozen=True, slots=True)
class NotFitted:
    """A number that was not fitted: it stays at the value of the level above, or at its literature value."""

    knob: Knob
    n_readings: int
    reason: str


def unused_readings(pairs: Iterable[tuple[RunRecord, Scenario]]) -> tuple[LeftOut, ...]:
    """Measured peaks and times of usable records that a fit leaves out, each by its rule."""
    found = []
    for record, scenario in pairs:
        if record.use is not None and record.use in NOT_ITS_MEMORY:
            found.append(LeftOut(record.id, record.use, RULES[record.use]))
        column = throughput_column(record) if record.outcome == "ok" else None
        if column is None:
            continue
        if record.use is not None and record.use in NOT_ITS_TIME:
            found.append(LeftOut(record.id, record.use, f"{column}: {RULES[record.use]}"))
            continue
        printed = float(getattr(record, column))
        target = Target(record, scenario, "throughput", 1 / printed if column.endswith("_per_s") else printed)
        if predicted(target, Coefficients()) is None:
            found.append(LeftOut(record.id, "not_timed", f"{column}: {RULES['not_timed']}"))
        elif is_impossible(target):
            reason = f"{column} of {printed:g} is more than {MAX_SHARE_OF_PEAK:.0%} of the card's dense peak"
            found.append(LeftOut(record.id, "impossible_rate", f"{reason}; only its time is left out"))
    return tuple(found)


def doubtful(records: Iterable[RunRecord]) -> tuple[LeftOut, ...]:
    """Records that can be scored, and that a fit would leave out because something is wrong with them."""
    screened = screen(records)
    wrong = tuple(each for each in screened.left_out if each.rule in _DOUBTFUL)
    return (*wrong, *(each for each in unused_readings(screened.used) if each.rule in _DOUBTFUL))


def unread_lines(quarantined: Iterable[Quarantined]) -> tuple[LeftOut, ...]:
    """Lines that never became records, by file and line; patterns that match no file."""
    return tuple(LeftOut(each.place, each.rule, each.reason) for each in quarantined)


def not_fitted(problems: Sequence[Problem]) -> tuple[NotFitted, ...]:
    """Every coefficient, and every key of its levels that some reading has, without a number of its own."""
    found: dict[Knob, NotFitted] = {}
    for name, freedom in FREEDOM.items():
        if not freedom.spread:
            continue
        readings = [target for problem in problems for target in _readings_of(problem, name)]
        if not readings:
            found[Knob(name)] = NotFitted(Knob(name), 0, "no reading, or one document alone, depends on it")
            continue
        found[Knob(name)] = NotFitted(
            Knob(name), len(readings), "too few documents depend on it, or no room is left"
        )
        for level in freedom.levels:
            counts = Counter(key for target in readings if (key := target.key(level)))
            least = MIN_READINGS_PER_LEVEL
            for key, count in counts.items():
                reason = f"needs {least} readings" if count < least else "no other key to tell it from"
                if count >= least and len(counts) > 1:
                    reason = "no room among the free numbers"
                found[Knob(name, level, key)] = NotFitted(Knob(name, level, key), count, reason)
    fitted = {knob for problem in problems for knob in problem.knobs}
    return tuple(each for knob, each in found.items() if knob not in fitted)


def _readings_of(problem: Problem, name: str) -> list[Target]:
    """Readings of the problem that depend on one coefficient."""
    columns = {column for column, knob in enumerate(problem.knobs) if knob.coefficient == name}
    return [
        target
        for target, active in zip(problem.targets, problem.active, strict=True)
        if columns & set(active.tolist())
    ]
