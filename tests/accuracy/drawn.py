"""The points of the README's picture as a file, so that drawing needs no fit and a picture of other points can be told.

``data/drawn_points.csv`` is written with ``data/accuracy.toml``: predictions of the four numbered documents by fits that never
saw them.  ``data/other_tools.csv`` holds what other estimators say of the same rows (``tests/accuracy/estimators.py``).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from planner.calibration.score.points import Point, points_of
from planner.calibration.score.rows import RowScore
from planner.catalog.location import data_dir
from planner.domain.calibration import Calibration
from planner.errors import InputFileError
from planner.files.reading import read_text
from tests.accuracy.published import CORE_PATTERN, published_dir
from tests.accuracy.tables import token_rate_points

POINTS_FILE = "drawn_points.csv"
TOOLS_FILE = "other_tools.csv"
_COLUMNS = ("series", "quantity", "record", "measured", "predicted")
_MARK = "# calibration: "


@dataclass(frozen=True, slots=True)
class Drawn:
    """Points of the picture: memory and rates of our own by document, memory of other estimators by their name.

    ``calibration`` is the fingerprint of the one that shipped when the points were made.
    """

    memory: tuple[Point, ...]
    rates: tuple[Point, ...]
    others: tuple[Point, ...]
    calibration: str

    @property
    def fingerprint(self) -> str:
        """Of everything that is drawn; the picture carries it."""
        return sha256((points_csv((*self.memory, *self.rates, *self.others)) + self.calibration).encode()).hexdigest()[:16]


def calibration_fingerprint(calibration: Calibration) -> str:
    """Of the formulas' version and the fitted numbers, without the last digits of a fit."""
    numbers = [f"{each.knob.label}:{each.offset:.5f}" for each in calibration.offsets]
    return sha256(";".join((calibration.formulas, *numbers)).encode()).hexdigest()[:16]


def drawn_points_csv(rows: Iterable[RowScore], calibration: Calibration) -> str:
    """Content of ``data/drawn_points.csv`` for held-out rows: those of the four documents."""
    core = {path.stem for path in published_dir().glob(CORE_PATTERN)}
    mine = [row for row in rows if row.record.source in core]
    points = (*points_of(mine, "memory"), *token_rate_points(mine))
    return f"{_MARK}{calibration_fingerprint(calibration)}\n{points_csv(points)}"


def points_csv(points: Sequence[Point]) -> str:
    """Points as CSV: bytes as whole numbers, rates with six digits."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for each in points:
        form = ".0f" if each.quantity.endswith("_bytes") else ".6g"
        writer.writerow((each.source, each.quantity, each.record_id, format(each.measured, form), format(each.predicted, form)))
    return text.getvalue()


def stored_drawn(folder: Path | None = None) -> Drawn:
    """What the picture has to show.

    Raises:
        InputFileError: a file is missing or malformed.
    """
    where = folder or data_dir()
    calibration, points = _read(where / POINTS_FILE)
    _, others = _read(where / TOOLS_FILE)
    rates = tuple(each for each in points if each.quantity.endswith("_per_s"))
    memory = tuple(each for each in points if each.quantity.endswith("_bytes"))
    return Drawn(memory, rates, others, calibration)


def _read(path: Path) -> tuple[str, tuple[Point, ...]]:
    first, _, rest = read_text(path).partition("\n")
    mark = first.removeprefix(_MARK) if first.startswith(_MARK) else ""
    rows = csv.DictReader(io.StringIO(rest if mark else f"{first}\n{rest}"))
    if tuple(rows.fieldnames or ()) != _COLUMNS:
        raise InputFileError(path, f"the columns must be {', '.join(_COLUMNS)}")
    try:
        return mark, tuple(_point(row) for row in rows)
    except ValueError as error:
        raise InputFileError(path, f"not a number: {error}", rows.line_num) from None


def _point(row: dict[str, str]) -> Point:
    measured, predicted = float(row["measured"]), float(row["predicted"])
    return Point(row["record"], row["series"], row["series"], row["quantity"], measured, predicted, None)
