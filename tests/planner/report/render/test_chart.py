"""A chart of memory in character cells, cell by cell."""

from __future__ import annotations

import pytest

from planner.report.render.chart import HEIGHT, chart_lines
from planner.report.render.layout import Chart, ChartPart
from planner.units import GIB


def part(*points: tuple[float, float], labels: tuple[str, ...] = ("loading", "load")) -> ChartPart:
    """Points in GiB."""
    return ChartPart(labels, tuple((lower * GIB, upper * GIB) for lower, upper in points))


def test_a_cell_shows_the_most_of_the_points_that_fall_into_it() -> None:
    """Five cells of each part: half of 10 GiB allocated in the first one,
    all of it reserved in the second one.
    """
    lines = chart_lines(
        Chart((part((1, 2), (5, 5)), part(*[(0, 10)] * 5, labels=("forward", "fwd")))), 7 + 10
    )
    assert len(lines) == HEIGHT + 2
    assert lines[0] == " 10.0 |     :::::"
    assert lines[5] == "  5.0 |   ##:::::"
    assert lines[8] == "      |:::##:::::", "the first point reserves 2 GiB"
    assert lines[9] == "      |#####:::::", "and has 1 GiB in use"
    assert lines[10] == "    0 +----+----"
    assert lines[11] == "      |load|fwd"


def test_the_limit_is_a_line_and_the_failure_a_cross_on_it() -> None:
    """A limit of 8 of 10 GiB is the third row from above; what is allocated beyond it is drawn over it."""
    chart = Chart((part((1, 1)), part((10, 10))), 8 * GIB, (1, 0.0))
    lines = chart_lines(chart, 7 + 10)
    assert lines[2] == "  8.0 |-----X####"
    assert lines[1] == "      |     #####"


def test_four_digits_do_not_move_the_axis() -> None:
    """Above 1,000 GiB labels have no decimals, and every row begins in the same column."""
    lines = chart_lines(Chart((part((1000, 2941.5)), part((5, 999.9)))), 7 + 10)
    assert lines[0].startswith(" 2942 |")
    assert {line.index("|") for line in lines[:HEIGHT]} == {6}


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_asked_for(width: int) -> None:
    """Whatever the number of parts and points."""
    parts = tuple(part(*[(1, 2)] * count) for count in (1, 7, 300, 2, 2, 900, 3))
    assert max(map(len, chart_lines(Chart(parts), width))) <= width


def test_without_room_there_is_no_chart() -> None:
    """Rather than a broken one."""
    assert chart_lines(Chart((part((1, 2)),)), 7) == []
