"""Published rows as points that can be drawn, in units that people read."""

from __future__ import annotations

from collections.abc import Iterable

from planner.calibration.score.points import Point
from planner.calibration.score.rows import RowScore
from planner.units import GIB


def token_rate_points(rows: Iterable[RowScore]) -> tuple[Point, ...]:
    """Time as real tokens per second of the whole job, whatever the document prints,
    so that documents share one unit.

    The predicted rate is carried over to the measurement by the ratio of the two printed numbers;
    the points have no interval.
    """
    found = []
    for row in rows:
        comparison = row.throughput
        if comparison is None or row.prediction is None or row.prediction.time is None:
            continue
        faster = comparison.measured / comparison.predicted
        predicted = float(row.prediction.time.tokens_per_s)
        measured = predicted * (faster if comparison.is_rate else 1 / faster)
        record = row.record
        found.append(
            Point(record.id, record.source, record.source_group, "tokens_per_s", measured, predicted, None)
        )
    return tuple(found)


def scale_and_unit(quantity: str) -> tuple[float, str]:
    """What a value of ``quantity`` is divided by to be read by people, and the unit that it then has."""
    if quantity.endswith("_bytes"):
        return GIB, "GiB"
    name = quantity.removesuffix("_per_s")
    return (1.0, f"{name}/s") if name != quantity else (1.0, "s")
