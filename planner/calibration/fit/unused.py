"""What a fit had and did not use: readings that teach nothing, numbers that stay as they were."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from planner.calibration.fit.problem import Problem
from planner.calibration.fit.screen import RULES, LeftOut, screen
from planner.calibration.fit.targets import Target, is_impossible, most_of_peak, predicted
from planner.calibration.score.rows import lengths_untold, throughput_column
from planner.domain.run_record import NOT_ITS_MEMORY, NOT_ITS_TIME, RunRecord
from planner.domain.scenario import Scenario
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
        if lengths_untold(record):
            found.append(LeftOut(record.id, "lengths_untold", f"{column}: {RULES['lengths_untold']}"))
            continue
        printed = float(getattr(record, column))
        target = Target(record, scenario, "throughput", 1 / printed if column.endswith("_per_s") else printed)
        if predicted(target, Coefficients()) is None:
            found.append(LeftOut(record.id, "not_timed", f"{column}: {RULES['not_timed']}"))
        elif is_impossible(target):
            reason = (
                f"{column} of {printed:g} is more than {most_of_peak(target):.0%} of the card's dense peak"
            )
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


def not_fitted(problems: Iterable[Problem], free: Collection[str]) -> dict[str, str]:
    """Coefficients that stay at their literature values, each with the reason."""
    fitted = {knob.coefficient for problem in problems for knob in problem.knobs if knob.level == "all"}
    names = [name for name, freedom in FREEDOM.items() if freedom.spread and name not in fitted]
    unread = "no reading, or one document alone, depends on it"
    return {
        name: unread if name in free else "sources that are left out are predicted no better with it"
        for name in names
    }
