"""Predictions and measurements drawn on axes of matplotlib, which the caller makes:
nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from planner.calibration.score.points import Point
from tests.accuracy.tables import scale_and_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# One colour and mark for each document, readable without colour, too.
_STYLES = (
    ("#33567a", "o"),
    ("#c2703d", "s"),
    ("#6b8e4e", "^"),
    ("#b5485d", "D"),
    ("#8a6fb0", "v"),
    ("#4f9d94", "P"),
)
_FACTORS = (1.0, 1.25, 0.8)


def draw_scatter(axes: Axes, points: Sequence[Point], title: str, unit: str) -> None:
    """Measured against predicted on logarithmic axes, by document, with lines at equality,
    at 1.25 and at 1 / 1.25 of it.
    """
    for (source, mine), (colour, mark) in zip(_by_source(points).items(), cycle(_STYLES), strict=False):
        scale = scale_and_unit(mine[0].quantity)[0]
        measured, predicted = (
            [getattr(point, name) / scale for point in mine] for name in ("measured", "predicted")
        )
        axes.scatter(
            measured, predicted, s=14, color=colour, marker=mark, alpha=0.7, label=f"{source} ({len(mine)})"
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = min(axes.get_xlim()[0], axes.get_ylim()[0]), max(axes.get_xlim()[1], axes.get_ylim()[1])
    for factor in _FACTORS:
        axes.plot(
            [low, high],
            [low * factor, high * factor],
            color="#808080",
            lw=0.8,
            ls="-" if factor == 1 else ":",
        )
    axes.set(
        xlim=(low, high),
        ylim=(low, high),
        xlabel=f"measured, {unit}",
        ylabel=f"predicted, {unit}",
        title=title,
    )
    axes.set_aspect("equal")
    axes.legend(fontsize=7)


def _by_source(points: Sequence[Point]) -> Mapping[str, Sequence[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.source, []).append(point)
    return found
