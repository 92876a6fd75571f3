"""``plan calibrate FILE...``: coefficients from records, for everybody or for one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.blas import one_thread_for_small_matrices
from planner.cli.outcome import Outcome, human_text
from planner.errors import ExitCode, InputFileError, UsageError

if TYPE_CHECKING:
    from planner.domain.uncertainty.calibration import Calibration
    from planner.records import Quarantined, RecordSet


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """Where to write the calibration and under which name; a name makes it a machine's own,
    unless a folder is given.

    ``template``: print an empty file of records instead.
    """

    name: str | None = None
    out: str | None = None
    template: bool = False


def calibrate_files(files: Sequence[str], options: CalibrateOptions) -> Outcome:
    """Fit and write a calibration, and say what was fitted, what it is worth,
    and which records were left out.

    Raises:
        UsageError: neither a folder nor a name, or no record can be used.
        InputFileError: a record file or a line of it that cannot be read,
        or a folder that cannot be written to.
    """
    if options.template:
        if files:
            raise UsageError(
                "--template prints an empty file: leave the file names out, or leave --template out"
            )
        return Outcome(_template())
    if not files:
        raise UsageError(
            "name the files of records; plan calibrate --template > mine.csv makes one to fill in"
        )
    if options.name is None and options.out is None:
        raise UsageError(
            "say where the calibration goes: --out FOLDER, or --name NAME for a machine of your own"
        )
    one_thread_for_small_matrices()
    records = _records(files)
    if options.name is not None:
        return _personal(records, options.name, options.out)
    from planner.calibration.fit.calibrate import calibrate
    from planner.calibration.fit.unused import unread_lines
    from planner.records.calibration_file import DEFAULT_CALIBRATION, write_calibration
    from planner.report.validation.cross_validation import fit_sections

    fitted, folder = calibrate(records.records, DEFAULT_CALIBRATION), Path(options.out or "")
    path = write_calibration(fitted.calibration, folder)
    text = human_text(fit_sections(fitted, unread_lines(records.quarantined)))
    return Outcome(f"{text}\nwritten to {path}\n", ExitCode.FITS)


def _records(files: Sequence[str]) -> RecordSet:
    """The records of ``files``; who calibrates wants every line in it,
    so all that cannot be read is told instead.
    """
    from planner.records import read_records
    from planner.records.parsing import told_at_once

    records = read_records(files, by_row=True)
    broken: dict[str, list[Quarantined]] = {}
    for each in records.quarantined:
        if each.rule == "unreadable":
            broken.setdefault(each.path, []).append(each)
    for path, lines in broken.items():
        raise InputFileError(path, told_at_once(lines))
    return records


def _template() -> str:
    from planner.records.template import template_text

    return template_text()


def _personal(records: RecordSet, name: str, out: str | None) -> Outcome:
    from planner.calibration.fit.personal import calibrate_machine
    from planner.calibration.fit.unused import unread_lines
    from planner.catalog.location import data_dir
    from planner.records.calibration_file import (
        DEFAULT_CALIBRATION,
        find_calibration,
        personal_dir,
        write_calibration,
    )
    from planner.report.validation.cross_validation import personal_sections

    _check_name(name)
    base = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
    own = calibrate_machine(records.records, name, base, records.attachments)
    path = write_calibration(own.calibration, Path(out) if out else personal_dir())
    text = human_text(personal_sections(own, unread_lines(records.quarantined)))
    return Outcome(
        f"{text}\nwritten to {path}; {_how_to_use(own.calibration, path if out else None)}\n", ExitCode.FITS
    )


def _check_name(name: str) -> None:
    """Before the fit, because a name that cannot be used is found out too late after it."""
    import re

    from planner.records.calibration_file import NAME_PATTERN, RESERVED_NAMES

    if name in RESERVED_NAMES:
        raise UsageError(f"--name '{name}' already means something to --calibration; choose another name")
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(f"--name '{name[:60]}' must be of letters, digits, '.', '_' and '-', at most 60")


def _how_to_use(own: Calibration, path: Path | None) -> str:
    """When ``plan`` uses it: by itself where it would run,
    if it lies where calibrations of one's own do; else by its path.
    """
    if path is not None or own.environment is None:
        return f"use it with --calibration {path or own.name}"
    stacks, host = " or ".join(own.environment.stacks), own.environment.host
    place = f"{own.environment.gpu} under {stacks}{f' on {host}' if host else ''}"
    return f"plan uses it by itself for {place}, or with --calibration {own.name}"
