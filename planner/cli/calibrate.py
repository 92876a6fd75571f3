"""``plan calibrate FILE...``: coefficients from records, for everybody or for one machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.outcome import Outcome, human_text
from planner.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from planner.domain.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """Where to write the calibration and under which name; a name makes it a machine's own, unless a folder is given."""

    name: str | None = None
    out: str | None = None


def calibrate_files(files: Sequence[str], options: CalibrateOptions) -> Outcome:
    """Fit and write a calibration, and say what was fitted, what it is worth, and which records were left out.

    Raises:
        UsageError: neither a folder nor a name, or no record can be used.
        InputFileError: a record file that cannot be read, or a folder that cannot be written to.
    """
    from planner.records import read_records

    if options.name is None and options.out is None:
        raise UsageError("say where the calibration goes: --out FOLDER, or --name NAME for a machine of your own")
    records = read_records(files)
    if options.name is not None:
        return _personal(records.records, options.name, options.out)
    from planner.calibration.calibrate import calibrate
    from planner.records.calibration_file import DEFAULT_CALIBRATION, write_calibration
    from planner.report.cross_validation import fit_sections

    fitted = calibrate(records.records, DEFAULT_CALIBRATION)
    path = write_calibration(fitted.calibration, Path(options.out or ""))
    return Outcome(f"{human_text(tuple(fit_sections(fitted)))}\nwritten to {path}\n", ExitCode.FITS)


def _personal(records: Sequence[RunRecord], name: str, out: str | None) -> Outcome:
    from planner.calibration.personal import calibrate_machine
    from planner.catalog.location import data_dir
    from planner.records.calibration_file import DEFAULT_CALIBRATION, find_calibration, personal_dir, write_calibration
    from planner.report.cross_validation import personal_sections

    base = find_calibration(DEFAULT_CALIBRATION, data_dir() / "calibration")
    own = calibrate_machine(records, name, base)
    path = write_calibration(own.calibration, Path(out) if out else personal_dir())
    text = human_text(personal_sections(own))
    return Outcome(f"{text}\nwritten to {path}; use it with --calibration {name}\n", ExitCode.FITS)
