"""Files by hand: calibrations, from the one that ships, and records as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planner.catalog.location import data_dir
from planner.domain.run_record import RunRecord
from planner.domain.uncertainty.calibration import Calibration
from planner.records import COLUMNS
from planner.records.calibration_file import read_calibration
from planner.records.cells import format_cell

SHIPPED = data_dir() / "calibration" / "default.json"


def shipped() -> Calibration:
    """The calibration of the package."""
    return read_calibration(SHIPPED)


def content_of_shipped() -> dict[str, Any]:
    """What its file says."""
    content: dict[str, Any] = json.loads(SHIPPED.read_text(encoding="utf-8"))
    return content


def written(folder: Path, content: dict[str, Any], name: str = "mine") -> Path:
    """A calibration file of this content."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content | {"name": name}), encoding="utf-8")
    return path


def write_csv(path: Path, records: Iterable[RunRecord]) -> None:
    """A table of every column."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        plain, quoted = (
            csv.writer(stream, lineterminator="\n", quoting=rule)
            for rule in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        )
        plain.writerow(COLUMNS)
        for record in records:
            cells = [format_cell(getattr(record, column)) for column in COLUMNS]
            # The csv module leaves a lone carriage return unquoted, and would read it as the end of the row.
            (quoted if any("\r" in cell for cell in cells) else plain).writerow(cells)
