"""The points of the README's picture, kept in ``data/accuracy.json`` so that drawing needs no fit.

Ours are predictions of the four numbered documents by fits that never saw them.  The others are answers of
other estimators about the same rows (``tests/accuracy/estimators.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.calibration.score.points import Point, points_of
from planner.calibration.score.rows import RowScore
from tests.accuracy.aims import stored_aims
from tests.accuracy.stored import stored_accuracy
from tests.accuracy.tables import token_rate_points

StoredPoint = list[str | int | float]
"""Series, quantity, record, measured, predicted."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Points of the picture: memory and rates of our own by document,
    memory of other estimators by their name.

    ``date``: the day on which the figures were made.
    """

    memory: tuple[Point, ...]
    rates: tuple[Point, ...]
    others: tuple[Point, ...]
    date: str


def drawn_points(rows: Iterable[RowScore]) -> list[StoredPoint]:
    """What is stored of held-out rows: those of the four documents."""
    mine = [row for row in rows if stored_aims().name_of(row.record.source) is not None]
    return stored_points((*points_of(mine, "memory"), *token_rate_points(mine)))


def stored_points(points: Sequence[Point]) -> list[StoredPoint]:
    """Points as they are stored: bytes as whole numbers, rates with six digits."""
    return [[each.source, each.quantity, each.record_id, *_numbers(each)] for each in points]


def _numbers(point: Point) -> tuple[int | float, int | float]:
    if point.quantity.endswith("_bytes"):
        return round(point.measured), round(point.predicted)
    return float(f"{point.measured:.6g}"), float(f"{point.predicted:.6g}")


def stored_drawn() -> Drawn:
    """What the picture has to show.

    Raises:
        InputFileError: the file is missing or malformed.
    """
    stored = stored_accuracy()
    points = [_point(*each) for each in stored["points"]]
    others = tuple(_point(*each) for tool in stored["other_tools"] for each in tool["points"])
    memory, rates = (
        tuple(each for each in points if each.quantity.endswith(unit)) for unit in ("_bytes", "_per_s")
    )
    return Drawn(memory, rates, others, stored["date"])


def _point(series: str, quantity: str, record: str, measured: float, predicted: float) -> Point:
    return Point(record, series, series, quantity, float(measured), float(predicted), None)
