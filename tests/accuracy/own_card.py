"""What the shipped calibration says of the jobs that ran on a card of our own, which no fit has seen."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from planner.calibration.score.points import points_of
from planner.calibration.score.rows import score_record
from planner.catalog.location import data_dir
from planner.records import read_records
from planner.records.calibration_file import read_calibration

RECORDS = Path(__file__).parent / "measured" / "h100-sxm.jsonl"


def own_card_text() -> str:
    """How many of its readings lie in their 90 % intervals, and the mean errors, in a paragraph."""
    calibration = read_calibration(data_dir() / "calibration" / "default.json")
    rows = [score_record(record, calibration) for record in read_records([str(RECORDS)]).records]
    parts = []
    for quantity, name in (("memory", "readings of reserved memory"), ("throughput", "times of a step")):
        points = points_of(rows, quantity)
        error = mean(abs(point.predicted / point.measured - 1) for point in points)
        inside = sum(point.is_inside is True for point in points)
        parts.append(f"{inside} of {len(points)} {name}, whose mean error is {error:.0%}")
    return f"90 % intervals hold {parts[0]}, and {parts[1]}.\n".replace("%,", " %,").replace("%.", " %.")
