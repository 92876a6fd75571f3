"""Published tables as points that can be drawn: what was measured, what is predicted,
and the interval around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.calibration.score.points import Point, point_of
from planner.calibration.score.rows import RowScore
from planner.units import GIB

# What a locator says after the name of its table: "table 1 row 3 (line 14)", "table 1 column stage0",
# "text (line 218)".
_AFTER_NAME = re.compile(r",? (?:rows?|columns?) .*| \(lines? .*")


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """The points of one quantity in one table of a document, in the order of its rows."""

    source: str
    name: str
    quantity: str
    points: tuple[Point, ...]


def published_tables(rows: Iterable[RowScore], quantity: str) -> tuple[PublishedTable, ...]:
    """The points by document, table and printed quantity;
    a row that stands in several tables is in each of them.
    """
    found: dict[tuple[str, str, str], list[Point]] = {}
    for row in rows:
        point = point_of(row, quantity)
        if point is None:
            continue
        for name in _tables_of(row.record.locator):
            found.setdefault((row.record.source, name, point.quantity), []).append(point)
    return tuple(PublishedTable(*key, tuple(found[key])) for key in sorted(found))


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


def coverage_by_group(points: Iterable[Point]) -> Mapping[str, tuple[int, int]]:
    """By source group: points inside their interval, and points that have one."""
    counts: dict[str, tuple[int, int]] = {}
    for point in points:
        if point.is_inside is not None:
            inside, of = counts.get(point.group, (0, 0))
            counts[point.group] = (inside + point.is_inside, of + 1)
    return counts


def scale_and_unit(quantity: str) -> tuple[float, str]:
    """What a value of ``quantity`` is divided by to be read by people, and the unit that it then has."""
    if quantity.endswith("_bytes"):
        return GIB, "GiB"
    name = quantity.removesuffix("_per_s")
    return (1.0, f"{name}/s") if name != quantity else (1.0, "s")


def _tables_of(locator: str | None) -> Sequence[str]:
    """Names of the tables (or parts of the text) that a locator names, each once."""
    parts = (locator or "no locator").split("; ")
    return tuple(dict.fromkeys(_AFTER_NAME.sub("", part) for part in parts))
