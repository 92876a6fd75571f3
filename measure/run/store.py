"""Where records go: one JSONL file for each kind of device, machine and day, under one folder."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from measure.run.assemble import MeasuredRecord
from measure.run.readings.environment import setup_key
from planner.domain.run_record import Outcome
from planner.errors import InputFileError, UsageError
from planner.files.reading import read_lines
from planner.files.writing import whole_file
from planner.records import RecordSet, append_jsonl, read_records
from planner.records.parsing import RECORD_BOUNDS
from planner.units import MIB, format_bytes

_MIN_FREE_BYTES = 64 * MIB
_HISTORIES = "histories"


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of records."""

    folder: Path

    def prepare(self) -> None:
        """Make the folder and try that it can be written, before anything is measured.

        Raises:
            UsageError: it cannot be made or written, or its disk is full.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
            free_bytes = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise UsageError(
                f"output folder '{self.folder}' cannot be written: {error.strerror or error}; give "
                "another --out"
            ) from None
        if free_bytes < _MIN_FREE_BYTES:
            raise UsageError(
                f"the disk of output folder '{self.folder}' is full: {format_bytes(free_bytes)} are left; "
                "give another --out"
            )

    def add(self, measured: MeasuredRecord) -> Path:
        """Append one record and force it to the disk.

        Raises:
            UsageError: it cannot be written.
        """
        record, environment = measured.record, measured.attachments["environment"]
        path = self.folder / f"{record.gpu}-{environment['machine']}-{datetime.now(UTC):%Y-%m-%d}.jsonl"
        if measured.history is not None:
            self._add_history(measured)
        append_jsonl(path, record, measured.attachments)
        return path

    def _add_history(self, measured: MeasuredRecord) -> None:
        """Put the allocator's history beside the records, before the record that names it."""
        name = f"{_HISTORIES}/{measured.record.id}.jsonl.gz"
        try:
            (self.folder / _HISTORIES).mkdir(exist_ok=True)
            with whole_file(self.folder / name) as stream:
                stream.write(measured.history or b"")
        except (OSError, InputFileError) as error:
            raise UsageError(
                f"the history of '{measured.record.id}' cannot be written: {error}; give another --out"
            ) from None
        measured.attachments["raw"]["history"] = name

    def read(self) -> RecordSet | None:
        """All records of the folder, ``None`` when there are none yet;
        lines that are no records are among ``quarantined``.

        Raises:
            InputFileError: a file that cannot be used, or a line of a newer schema:
            what it records would be measured again.
        """
        files = (
            sorted(path for path in self.folder.glob("*.jsonl") if _holds_lines(path))
            if self.folder.is_dir()
            else []
        )
        if not files:
            return None
        records = read_records(files, by_row=True, may_be_none=True)
        for line in records.quarantined:
            if line.rule == "newer_schema":
                raise InputFileError(line.path, line.reason, line.line)
        return records


def _holds_lines(path: Path) -> bool:
    """Whether there is anything to read; a pipe is not opened."""
    return bool(path.stat().st_size) and any(line.strip() for line in read_lines(path, RECORD_BOUNDS))


def left_out_text(records: RecordSet | None) -> str | None:
    """How many lines of the folder could not be read, and the first of them; ``None`` where all could."""
    lines = () if records is None else records.quarantined
    if not lines:
        return None
    first = f"{lines[0].place}: {lines[0].reason}"
    if len(lines) == 1:
        return f"1 line of the records is no record and is left out; its file stays as it is: {first}"
    return (
        f"{len(lines)} lines of the records are no records and are left out; their files stay as they "
        f"are: first {first}"
    )


def recorded_counts(records: RecordSet, retry: Collection[Outcome] = ()) -> Counter[tuple[str, str]]:
    """How often each case was recorded on machines alike: (case key, setup key);
    outcomes of ``retry`` do not count.
    """
    kept = (records.attachments.get(each.id, {}) for each in records.records if each.outcome not in retry)
    found = (each for each in kept if "raw" in each and "environment" in each)
    return Counter((each["raw"]["case_key"], setup_key(each["environment"])) for each in found)
