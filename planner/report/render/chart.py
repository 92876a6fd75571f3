"""Memory over time in character cells: what is allocated, what is cached above it, and the limit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from planner.report.render.layout import Chart, ChartPart
from planner.units import GIB

ALLOCATED, CACHED, LIMIT, CROSSED = "#", ":", "-", "X"
HEIGHT = 10
_NARROWEST = 5
_MARGIN = 6
_NO_DECIMALS_GIB = 999.95


def chart_lines(chart: Chart, width: int) -> list[str]:
    """``HEIGHT`` rows, the axis and the names of its parts, in lines of at most ``width`` characters."""
    widths = _part_widths(chart.parts, width - _MARGIN - 1)
    columns = [
        column for part, cells in zip(chart.parts, widths, strict=True) for column in _columns(part, cells)
    ]
    if not columns:
        return []
    most = max(upper for _, upper in columns) or 1.0
    limit = chart.limit_bytes
    top = max(most, limit or 0.0)
    limit_row = None if limit is None else min(max(round(HEIGHT * limit / top), 1), HEIGHT)
    crossed = _crossed_column(chart, widths)
    rows = [_row(columns, row, top, limit_row, crossed) for row in range(HEIGHT, 0, -1)]
    margins = {HEIGHT: top, HEIGHT // 2: top / 2}
    if limit_row is not None and limit is not None:
        margins = {row: size for row, size in margins.items() if abs(row - limit_row) > 1} | {
            limit_row: limit
        }
    lines = [
        f"{_amount(margins.get(row)):>{_MARGIN - 1}} |{drawn}"
        for row, drawn in zip(range(HEIGHT, 0, -1), rows, strict=True)
    ]
    axis = "".join(f"+{'-' * (cells - 1)}" for cells in widths)
    names = "".join(f"|{_name(part, cells - 1)}" for part, cells in zip(chart.parts, widths, strict=True))
    return [line.rstrip() for line in (*lines, f"{'0':>{_MARGIN - 1}} {axis}", f"{'':>{_MARGIN}}{names}")]


def _amount(n_bytes: float | None) -> str:
    """In GiB, of at most five characters below 100 TiB."""
    size = 0.0 if n_bytes is None else n_bytes / GIB
    return "" if n_bytes is None else f"{size:.{0 if size >= _NO_DECIMALS_GIB else 1}f}"


def _part_widths(parts: Sequence[ChartPart], width: int) -> list[int]:
    """Cells of each part: room for a short name, and the rest in proportion to its points."""
    least = min(_NARROWEST, max(width, 0) // max(len(parts), 1))
    if least < 1:
        return [0] * len(parts)
    rest = width - least * len(parts)
    total = sum(len(part.points) for part in parts)
    edges = [0, *(round(rest * points / total) for points in accumulate(len(part.points) for part in parts))]
    return [least + end - start for start, end in pairwise(edges)]


def _columns(part: ChartPart, cells: int) -> list[tuple[float, float]]:
    """The most of the points that fall into each cell."""
    points, count = part.points, len(part.points)
    found = []
    for cell in range(cells):
        start = cell * count // cells
        among = points[start : max((cell + 1) * count // cells, start + 1)]
        found.append((max(lower for lower, _ in among), max(upper for _, upper in among)))
    return found


def _crossed_column(chart: Chart, widths: Sequence[int]) -> int | None:
    if chart.crossed is None:
        return None
    index, place = chart.crossed
    return sum(widths[:index]) + min(int(place * widths[index]), widths[index] - 1)


def _row(
    columns: Sequence[tuple[float, float]], row: int, top: float, limit_row: int | None, crossed: int | None
) -> str:
    """One row of cells: a cell is drawn where an amount reaches its middle."""
    middle = top * (row - 0.5) / HEIGHT
    cells = []
    for index, (lower, upper) in enumerate(columns):
        blank = LIMIT if row == limit_row else " "
        mark = ALLOCATED if lower >= middle else CACHED if upper >= middle else blank
        cells.append(CROSSED if row == limit_row and index == crossed else mark)
    return "".join(cells)


def _name(part: ChartPart, cells: int) -> str:
    """The longest name that fits, else the start of the shortest one."""
    fitting = next((label for label in part.labels if len(label) <= cells), part.labels[-1][:cells])
    return fitting.ljust(cells)
