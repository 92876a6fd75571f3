"""Runs of our own that did the same job as a scenario, on whatever GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from planner.calibration.score.rows import is_cpu
from planner.catalog.location import data_dir
from planner.domain.run_record import RunRecord
from planner.domain.scenario import Scenario
from planner.errors import NotModelledError, UsageError
from planner.intake.given.request import from_record
from planner.intake.resolve import resolve
from planner.records import RecordSet, read_records
from planner.records.measured import RawReadings, raw_of


@dataclass(frozen=True, slots=True)
class OwnRun:
    """One run that ended well, with its readings where it carries them.

    ``allocated_bytes``, ``reserved_bytes``: highest of any phase on the fullest rank;
    ``None`` without readings.
    """

    record: RunRecord
    allocated_bytes: int | None
    reserved_bytes: int | None


def own_runs(scenario: Scenario, folder: Path | None = None) -> tuple[OwnRun, ...]:
    """Records below ``data/measurements`` (or ``folder``) with the model,
    recipe and stack of ``scenario``, in order of files.

    Raises:
        InputFileError: a file that cannot be read.
    """
    files = sorted((folder or data_dir() / "measurements").glob("**/*.jsonl"))
    if not files:
        return ()
    records = read_records(files, by_row=True)
    return tuple(_own_run(record, records) for record in records.records if _is_alike(record, scenario))


def _is_alike(record: RunRecord, scenario: Scenario) -> bool:
    if record.outcome != "ok" or is_cpu(record):
        return False
    try:
        other = resolve(from_record(record), force=True)
    except (NotModelledError, UsageError):
        return False
    same = (other.model, other.recipe, other.stack.id, other.hardware.world_size)
    return same == (scenario.model, scenario.recipe, scenario.stack.id, scenario.hardware.world_size)


def _own_run(record: RunRecord, records: RecordSet) -> OwnRun:
    raw = raw_of(records.attachments.get(record.id, {}))
    return OwnRun(record, _highest(raw, "allocated_peak_bytes"), _highest(raw, "reserved_peak_bytes"))


def _highest(raw: RawReadings | None, name: str) -> int | None:
    found: Iterable[int | None] = (
        () if raw is None else (getattr(phase, name) for rank in raw.ranks for phase in rank.phases)
    )
    return max((each for each in found if each is not None), default=None)
