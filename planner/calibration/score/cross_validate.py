"""Held-out errors beside in-sample ones: each group predicted by a calibration that never saw it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.calibration.fit.calibrate import Fitted, calibrate
from planner.calibration.score.validate import Validation, validate
from planner.records import RecordSet


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Three validations of the same records.

    ``held_out``: each group by the calibration without it, as one of a machine that was never seen.
    ``in_sample``: by the calibration on all groups.
    ``prior``: without any fit.
    """

    fitted: Fitted
    held_out: Validation
    in_sample: Validation
    prior: Validation


def cross_validate(records: RecordSet) -> CrossValidation:
    """Calibrate with and without each source group, and score every record with each.

    Raises:
        InputFileError: a record with a name that no catalog knows or a value that cannot be used;
        names file and line.
    """
    prior = validate(records)
    fitted = calibrate(records.records)

    held_out = validate(records, lambda record: fitted.without.get(record.source_group, fitted.calibration))
    in_sample = validate(records, lambda _: fitted.calibration)
    return CrossValidation(fitted, held_out, replace(in_sample, is_held_out=False), prior)
