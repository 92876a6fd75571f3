"""A stacked bar in character cells: how many cells each segment gets, and where the limit is."""

from __future__ import annotations

from itertools import pairwise

from planner.report.render.layout import StackedBar
from planner.report.render.numbers import gib

FREE = "."


def segment_cells(bar: StackedBar, width: int) -> tuple[int, ...]:
    """Cells of each segment in a bar of ``width`` cells.

    Edges are rounded, not lengths, so that the cells of all segments add up to the rounded total;
    a thin segment may get none.
    """
    scale = bar.scale_bytes
    if scale <= 0:
        return tuple(0 for _ in bar.segments)
    edges = [0]
    position = 0.0
    for segment in bar.segments:
        position += segment.n_bytes
        edges.append(min(round(width * position / scale), width))
    return tuple(end - start for start, end in pairwise(edges))


def scale_line(bar: StackedBar, width: int) -> str:
    """The line under a bar that marks the limit, or only the total where no limit is known."""
    if bar.limit_bytes is None:
        return f"total {gib(bar.total_bytes)} GiB, limit unknown".rjust(width)
    label = f"limit {gib(bar.limit_bytes)} GiB"
    at = min(round(width * bar.limit_bytes / bar.scale_bytes), width) - 1 if bar.scale_bytes > 0 else 0
    before = f"{label} ^".rjust(at + 1)
    return before if len(before) <= width and at >= len(label) + 1 else f"{' ' * max(at, 0)}^ {label}"


def letter_line(bar: StackedBar, width: int) -> str:
    """The bar drawn with the letters of its segments; free room is dots."""
    cells = segment_cells(bar, width)
    drawn = "".join(segment.key * count for segment, count in zip(bar.segments, cells, strict=True))
    return drawn.ljust(width, FREE)
