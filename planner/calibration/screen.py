"""Which records a fit may use, and by which named rule the others are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.calibration.rows import THROUGHPUT_COLUMNS
from planner.domain.coefficients import Coefficients
from planner.domain.run_record import RunRecord
from planner.domain.scenario import Scenario
from planner.domain.term import PHASES
from planner.errors import InputFileError, NotModelledError, UsageError
from planner.intake.request import from_record
from planner.intake.resolve import resolve
from planner.memory.job import job_of
from planner.memory.peak import predict_memory
from planner.units import MIB

RULES: Mapping[str, str] = {
    "not_modelled": "the configuration is not modelled",
    "unusable": "a name that no catalog knows, or a value outside its range",
    "cpu_record": "a run without a GPU says nothing of GPU memory or speed",
    "failed_run": "the run neither ended well nor ran out of GPU memory",
    "repeat": "the notes mark it as a repeat of another row",
    "duplicate": "configuration and readings are those of an earlier row",
    "above_card": "more memory than the card has: its unit or its GPU is wrong",
    "other_machine": "a personal calibration is of one machine, and most of its records are of another",
    "no_reading": "nothing measured that can be compared",
    "below_weights": "less memory than the weights alone take: its unit or its model is wrong",
    "impossible_rate": "faster than the card's arithmetic allows; only its time is left out",
    "loop_time": "its notes say that the time is of more than training steps; only its time is left out",
    "not_timed": "its time cannot be predicted, so it teaches nothing; only its time is left out",
    "no_file": "a pattern that matches no file",
    "newer_schema": "a line of a newer planner",
    "repeated_id": "an id that an earlier line has",
    "unfinished": "a last line that a crash left unfinished",
}
# What the driver reports may exceed what CUDA shows by its own reservation, up to about 4 % of a 24 GiB card.
_DRIVER_MARGIN = 1.04
# Weights that a record's stack may hold in fewer bits than the planner thinks are no reason to doubt its unit.
_LEAST_SHARE_OF_WEIGHTS = 0.5
_REPEAT_MARK = "REPEAT"
_LOOP_MARK = "TIME OF A LOOP"


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


def times_a_loop(record: RunRecord) -> bool:
    """Whether the notes mark the time as that of a loop with more in it than training steps."""
    return _LOOP_MARK in (record.notes or "")


def nothing_usable(left_out: Sequence[LeftOut]) -> str:
    """Why there is nothing to fit: how many records each rule left out, with the first of them."""
    by_rule: dict[str, list[LeftOut]] = {}
    for each in left_out:
        by_rule.setdefault(each.rule, []).append(each)
    reasons = [f"{rule} {len(mine)} ({mine[0].record_id}: {mine[0].reason})" for rule, mine in by_rule.items()]
    return f"no record can be used to calibrate: {'; '.join(reasons) or 'there is no reading to fit'}"


def _judge(record: RunRecord, seen: dict[RunRecord, str]) -> tuple[Scenario | None, str, str]:
    """(scenario, rule, reason): a scenario where the record can be used, else the rule that leaves it out."""
    identity = replace(record, id="", locator=None, notes=None, grade=None)
    rule, reason = _unfit(record, seen.get(identity))
    if rule:
        return None, rule, reason
    seen[identity] = record.id
    try:
        scenario = resolve(from_record(record), force=True)
    except NotModelledError as error:
        return None, "not_modelled", str(error)
    except InputFileError:
        raise
    except UsageError as error:
        return None, "unusable", str(error)
    if reason := _above_card(record, scenario):
        return None, "above_card", reason
    if reason := _below_weights(record, scenario):
        return None, "below_weights", reason
    return scenario, "", ""


def _unfit(record: RunRecord, twin: str | None) -> tuple[str, str]:
    """(rule, reason) of what is wrong with a record before it is looked up; empty where nothing is."""
    if record.gpu == "cpu":
        return "cpu_record", ""
    if record.outcome not in ("ok", "oom"):
        return "failed_run", f"{RULES['failed_run']}: {record.outcome}"
    if _REPEAT_MARK in (record.notes or ""):
        return "repeat", ""
    if twin is not None:
        return "duplicate", f"{RULES['duplicate']}: {twin}"
    return ("no_reading", "") if record.outcome == "ok" and not _has_reading(record) else ("", "")


def _has_reading(record: RunRecord) -> bool:
    names = ("peak_memory_mib", "host_memory_mib", *THROUGHPUT_COLUMNS)
    return any(getattr(record, name) is not None for name in names)


def _below_weights(record: RunRecord, scenario: Scenario) -> str:
    """What is wrong with a peak that the weights on the GPU do not fit into; empty where nothing is."""
    if record.peak_memory_mib is None or record.phase_reached == "load":
        return ""
    terms = predict_memory(job_of(scenario, Coefficients())).terms
    weights_bytes = sum(float(term.n_bytes) for term in terms if term.name == "weights" and len(term.phases) == len(PHASES))
    cards = scenario.hardware.world_size if record.memory_scope == "all_gpus" else 1
    if record.peak_memory_mib * MIB >= _LEAST_SHARE_OF_WEIGHTS * weights_bytes * cards:
        return ""
    return f"{record.peak_memory_mib:g} MiB for weights of {weights_bytes * cards / MIB:.0f} MiB: {RULES['below_weights']}"


def _above_card(record: RunRecord, scenario: Scenario) -> str:
    """What is wrong with a peak above the card's memory; empty where nothing is."""
    hardware = scenario.hardware
    card_bytes = hardware.gpu.marketing_memory_bytes or hardware.gpu.visible_memory_bytes
    if record.peak_memory_mib is None or card_bytes is None:
        return ""
    cards = hardware.world_size if record.memory_scope == "all_gpus" else 1
    if record.peak_memory_mib * MIB <= card_bytes * cards * _DRIVER_MARGIN:
        return ""
    return f"{record.peak_memory_mib:.0f} MiB on {cards} x {hardware.gpu.id} of {card_bytes / MIB:.0f} MiB: {RULES['above_card']}"
