"""Rows and scores made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.calibration.score.metrics import ErrorSummary, OomSummary
from planner.calibration.score.rows import Comparison, RowScore
from planner.calibration.score.validate import SourceScore
from planner.domain.run_record import RunRecord
from planner.units import GIB

RECORD = RunRecord(
    id="r1", source="s", source_group="g", model="7b", gpu="rtx4090", method="lora", outcome="ok"
)
MEMORY = Comparison("driver_bytes", 20 * GIB, 25 * GIB)
ROW = RowScore(RECORD, memory=MEMORY, oom="right")
NO_VERDICTS = OomSummary(0, 0, 0, 0, 0, 0, 0)
ERRORS = ErrorSummary(3, 0.2, -0.1, 0.3, "r1", (("driver_bytes", 3),))


def score(source: str = "s", **changed: Any) -> SourceScore:
    """A source of three rows without any reading."""
    return replace(
        SourceScore(source, 3, 0, (), (), None, None, None, None, None, None, None, NO_VERDICTS), **changed
    )
