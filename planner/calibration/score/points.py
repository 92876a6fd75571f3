"""Rows as points: what was measured, what is predicted, and the interval around it, in one unit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.calibration.score.rows import Comparison, RowScore
from planner.domain.prediction import Prediction
from planner.domain.uncertainty.interval import Interval


@dataclass(frozen=True, slots=True)
class Point:
    """One measured number beside its prediction, both in the unit that ``quantity`` ends in.

    ``interval`` is the nominal range around the prediction; ``None`` without a calibration,
    or where it knows no such reading.
    """

    record_id: str
    source: str
    group: str
    quantity: str
    measured: float
    predicted: float
    interval: Interval | None

    @property
    def is_inside(self) -> bool | None:
        """Whether the measurement lies in the interval; ``None`` without one."""
        return None if self.interval is None else self.interval.low <= self.measured <= self.interval.high


def points_of(rows: Iterable[RowScore], quantity: str) -> tuple[Point, ...]:
    """Points of the rows that have ``quantity`` (one of
    :data:`planner.calibration.score.rows.QUANTITIES`).
    """
    return tuple(point for row in rows if (point := point_of(row, quantity)) is not None)


def point_of(row: RowScore, quantity: str) -> Point | None:
    """The point of one row; ``None`` where it has no such quantity or was not predicted."""
    comparison: Comparison | None = getattr(row, quantity)
    if comparison is None or row.prediction is None:
        return None
    interval = _interval_of(row.prediction, comparison, quantity)
    record = row.record
    numbers = (comparison.quantity, comparison.measured, comparison.predicted, interval)
    return Point(record.id, record.source, record.source_group, *numbers)


def _interval_of(prediction: Prediction, comparison: Comparison, quantity: str) -> Interval | None:
    """The interval of the peak, the step or the process, carried over to what was printed (a total, a rate,
    a whole run).
    """
    centre, interval = _predicted_interval(prediction, comparison, quantity)
    if interval is None:
        return None
    low, high = interval.low / centre, interval.high / centre
    if comparison.is_rate:
        low, high = 1 / high, 1 / low
    return Interval(comparison.predicted * low, comparison.predicted * high)


def _predicted_interval(
    prediction: Prediction, comparison: Comparison, quantity: str
) -> tuple[float, Interval | None]:
    """A prediction and the interval around it, in the unit of both."""
    uncertainty = prediction.uncertainty
    if uncertainty is None:
        return 0.0, None
    if quantity == "throughput":
        return (0.0, None) if prediction.time is None else (float(prediction.time.step_s), uncertainty.step)
    if quantity == "host_memory":
        return float(prediction.host.per_process_bytes), uncertainty.host
    level = comparison.quantity.removesuffix("_bytes")
    centre = float(getattr(prediction.memory, f"{level}_peak_bytes"))
    return centre, next((interval for name, interval in uncertainty.memory if name == level), None)
