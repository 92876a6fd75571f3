"""The calibration before the last one, kept so that what a new one changed can be explained."""

from __future__ import annotations

import math
from pathlib import Path

from planner.domain.uncertainty.calibration import Calibration, formulas_version
from planner.domain.uncertainty.hierarchy import FREEDOM, PRIOR_BY_NAME
from planner.errors import InputFileError
from planner.records.calibration_file import (
    MAX_OFFSET,
    PREVIOUS_CALIBRATION,
    CalibrationDocument,
    KnobPart,
    OffsetPart,
    calibration_of,
    document_of,
    read_document,
    write_document,
)


def keep_previous(calibration: Calibration, folder: Path) -> Path | None:
    """Copy what ``calibration`` will replace in ``folder`` to ``previous.json``,
    so that the change can be explained later.

    A file with the same numbers is not a previous one; neither is one that cannot be read.
    Returns the copy's path.

    Raises:
        InputFileError: the copy cannot be written.
    """
    try:
        before = read_document(folder / f"{calibration.name}.json")
    except InputFileError:
        return None
    if _numbers(before) == _numbers(document_of(calibration)):
        return None
    return write_document(before.model_copy(update={"name": PREVIOUS_CALIBRATION}), folder)


def _numbers(document: CalibrationDocument) -> object:
    """What makes two calibrations different ones; the last digits of a fit do not."""
    offsets = [(each.knob, round(each.offset, 6), round(each.spread, 6)) for each in document.offsets]
    spreads = [(each.key, [round(score, 6) for score in each.scores]) for each in document.spreads]
    return document.formulas, offsets, spreads, document.scale


def read_previous(folder: Path) -> Calibration | None:
    """The calibration that the one in ``folder`` replaced, as offsets from today's priors;
    ``None`` without one.

    Its coefficients mean what they meant then only as far as the formulas are the same:
    what is told apart is the coefficients.

    Raises:
        InputFileError: malformed, or of other formulas and without the priors that it started from.
    """
    path = folder / f"{PREVIOUS_CALIBRATION}.json"
    if not path.is_file():
        return None
    document = read_document(path)
    if document.formulas != formulas_version() and not document.priors:
        raise InputFileError(path, "is of other formulas and does not say which priors it started from")
    known = [each for each in document.offsets if each.knob.coefficient in FREEDOM]
    shifts = [_shift(name, then) for name, then in document.priors.items() if name in FREEDOM]
    return calibration_of(document.model_copy(update={"offsets": [*known, *filter(None, shifts)]}), path)


def _shift(name: str, then: float) -> OffsetPart | None:
    """How far the prior of one coefficient lay from today's."""
    prior = PRIOR_BY_NAME[name]
    if then == prior.value or (prior.low > 0 and then <= 0):
        return None
    # The difference of logarithms: a quotient of extreme numbers may be 0 or infinite.
    offset = math.log(then) - math.log(prior.value) if prior.low > 0 else then - prior.value
    offset = min(max(offset, -MAX_OFFSET), MAX_OFFSET)
    return OffsetPart(knob=KnobPart(coefficient=name, level="all", key=""), offset=offset, spread=0)
