"""The bar of memory."""

from __future__ import annotations

from planner.report.render.bar import letter_line, scale_line, segment_cells
from planner.report.render.layout import Segment, StackedBar
from planner.units import GIB


def test_bar_cells_add_up() -> None:
    """The cells of all segments equal the rounded total, however thin the segments are."""
    bar = StackedBar(tuple(Segment("x", 3.3) for _ in range(10)), 100.0)
    assert sum(segment_cells(bar, 100)) == 33
    assert letter_line(bar, 100) == "x" * 33 + "." * 67


def test_the_limit_is_marked_inside_the_bar_when_the_job_is_too_large() -> None:
    """The mark stands under the cell where the card ends, and at the right end when everything fits."""
    too_large = StackedBar((Segment("a", 4.0 * GIB),), 2.0 * GIB)
    assert letter_line(too_large, 80) == "a" * 80
    assert scale_line(too_large, 80).index("^") == 39
    assert scale_line(StackedBar((Segment("a", 1.0 * GIB),), 2.0 * GIB), 80).index("^") == 79
    assert scale_line(StackedBar((Segment("a", 99.0 * GIB),), 1.0 * GIB), 80) == "^ limit 1.00 GiB"
    assert "limit unknown" in scale_line(StackedBar((Segment("a", 1.0 * GIB),), None), 80)
