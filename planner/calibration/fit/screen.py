"""Which records a fit may use, and by which named rule the others are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.calibration.score.plausible import (
    ABOVE_CARD,
    BELOW_WEIGHTS,
    above_card,
    below_weights,
    scenario_of,
)
from planner.calibration.score.rows import THROUGHPUT_COLUMNS
from planner.domain.run_record import RunRecord
from planner.domain.scenario import Scenario
from planner.errors import InputFileError, NotModelledError, UsageError

RULES: Mapping[str, str] = {
    "not_modelled": "the configuration is not modelled",
    "unusable": "a name that no catalog knows, or a value outside its range",
    "cpu_record": "a run without a GPU says nothing of GPU memory or speed",
    "failed_run": "the run neither ended well nor ran out of GPU memory",
    "repeat": "the column use marks it as a repeat of another row",
    "duplicate": "configuration and readings are those of an earlier row",
    "refused": "plan refuses the combination, so it is not what ran",
    "above_card": ABOVE_CARD,
    "other_machine": "a personal calibration is of one machine, and most of its records are of another",
    "no_reading": "nothing measured that can be compared",
    "below_weights": BELOW_WEIGHTS,
    "impossible_rate": "faster than the card's arithmetic allows; only its time is left out",
    "loop_time": (
        "the column use says that its time is of more than training steps; only its time is left out"
    ),
    "clock_locked": ("the column use says that its cards ran at a locked clock; only its time is left out"),
    "link_unknown": (
        "the column use says that nobody knows the link between its GPUs; only its time is left out"
    ),
    "power_unknown": (
        "the column use says that nobody knows the power limit of its cards; only its time is left out"
    ),
    "routing_unknown": (
        "the column use says that nobody knows what experts get of repeated text; only its time is left out"
    ),
    "lengths_untold": ("samples have natural lengths whose mean is not said; only its time is left out"),
    "length_at_peak_unknown": (
        "the column use says that nobody knows its longest batch; only its memory is left out"
    ),
    "data_on_card": (
        "the column use says that the loop holds its data set on the card; only its memory is left out"
    ),
    "not_timed": "its time cannot be predicted, so it teaches nothing; only its time is left out",
    "no_file": "a pattern that matches no file",
    "newer_schema": "a line of a newer planner",
    "repeated_id": "an id that an earlier line has",
    "unreadable": "a line that is no record",
    "unfinished": "a last line that a crash left unfinished",
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A record that the fit does not use: the name of the rule, and what is wrong in words."""

    record_id: str
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Screened:
    """Records that a fit may use, each with its scenario, and those left out."""

    used: tuple[tuple[RunRecord, Scenario], ...]
    left_out: tuple[LeftOut, ...]


def screen(records: Iterable[RunRecord]) -> Screened:
    """Sort records into usable ones and those that a rule of :data:`RULES` leaves out, in the order given."""
    used: list[tuple[RunRecord, Scenario]] = []
    left_out: list[LeftOut] = []
    seen: dict[RunRecord, str] = {}
    for record in records:
        scenario, rule, reason = _judge(record, seen)
        if scenario is None:
            left_out.append(LeftOut(record.id, rule, reason or RULES[rule]))
        else:
            used.append((record, scenario))
    return Screened(tuple(used), tuple(left_out))


def nothing_usable(left_out: Sequence[LeftOut]) -> str:
    """Why there is nothing to fit: how many records each rule left out, with the first of them."""
    by_rule: dict[str, list[LeftOut]] = {}
    for each in left_out:
        by_rule.setdefault(each.rule, []).append(each)
    reasons = [
        f"{rule} {len(mine)} ({mine[0].record_id}: {mine[0].reason})" for rule, mine in by_rule.items()
    ]
    return f"no record can be used to calibrate: {'; '.join(reasons) or 'there is no reading to fit'}"


def _judge(record: RunRecord, seen: dict[RunRecord, str]) -> tuple[Scenario | None, str, str]:
    """(scenario, rule, reason): a scenario where the record can be used, else the rule that leaves it out."""
    identity = replace(record, id="", locator=None, notes=None, use=None, grade=None)
    rule, reason = _unfit(record, seen.get(identity))
    if rule:
        return None, rule, reason
    seen[identity] = record.id
    try:
        scenario, refused = scenario_of(record)
    except NotModelledError as error:
        return None, "not_modelled", str(error)
    except InputFileError:
        raise
    except UsageError as error:
        return None, "unusable", str(error)
    wrong = {
        "refused": refused,
        "above_card": above_card(record, scenario),
        "below_weights": below_weights(record, scenario),
    }
    rule, reason = next(((rule, reason) for rule, reason in wrong.items() if reason), ("", ""))
    return (None, rule, reason) if rule else (scenario, "", "")


def _unfit(record: RunRecord, twin: str | None) -> tuple[str, str]:
    """(rule, reason) of what is wrong with a record before it is looked up; empty where nothing is."""
    if record.gpu == "cpu":
        return "cpu_record", ""
    if record.outcome not in ("ok", "oom"):
        return "failed_run", f"{RULES['failed_run']}: {record.outcome}"
    if record.use == "repeat":
        return "repeat", ""
    if twin is not None:
        return "duplicate", f"{RULES['duplicate']}: {twin}"
    return ("no_reading", "") if record.outcome == "ok" and not _has_reading(record) else ("", "")


def _has_reading(record: RunRecord) -> bool:
    names = ("peak_memory_mib", "host_memory_mib", *THROUGHPUT_COLUMNS)
    return any(getattr(record, name) is not None for name in names)
