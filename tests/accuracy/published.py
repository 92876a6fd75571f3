"""The published rows that ship with the package, scored."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from planner.calibration.score.validate import Validation, validate
from planner.catalog.location import data_dir
from planner.records import read_records

# The documents that are accounted for row by row.
CORE_PATTERN = "[0-9]*.csv"


def published_dir() -> Path:
    """Folder of the published record files."""
    return data_dir() / "published"


@cache
def published_validation() -> Validation:
    """Uncalibrated predictions against every published row."""
    return validate(read_records([published_dir() / "*.csv"]))


@cache
def core_validation() -> Validation:
    """Uncalibrated predictions against the four documents whose file names start with a number.

    Every choice about these is described in ``data/published/README.md``, and each of their misses is listed
    row by row; the other sources are reported by source.
    """
    return validate(read_records([published_dir() / CORE_PATTERN]))
