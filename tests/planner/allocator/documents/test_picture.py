"""The picture of a timeline: places of events, areas of terms, the limit, and the file itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.allocator.documents.picture import _NARROWEST, _lines, _Scale, _stack_terms, draw_timeline
from planner.allocator.documents.summary import summarize, timeline_over
from planner.allocator.documents.timeline import Span, Timeline
from planner.errors import InputFileError
from planner.units import GIB, MIB
from tests.extras import needs
from tests.planner.allocator.documents.made import EVENTS


def timeline(limit_bytes: int | None = None) -> Timeline:
    """Of seven events in three phases."""
    return timeline_over(EVENTS, summarize(EVENTS, limit_bytes), 100)


def test_a_short_phase_is_widened_and_long_ones_keep_their_proportions() -> None:
    """Of 1,000 events one is a phase, which gets 5.5 % beside the 99.9 of the other two."""
    scale = _Scale([Span("forward", 0, 333), Span("loss", 333, 334), Span("backward", 334, 1000)])
    whole = 0.333 + _NARROWEST + 0.666
    assert scale.borders == pytest.approx([0, 0.333 / whole, (0.333 + _NARROWEST) / whole, 1])
    assert scale(0) == 0
    assert scale(1000) == pytest.approx(1)
    assert scale(333) == pytest.approx(scale.borders[1])
    assert scale(667) == pytest.approx((scale.borders[2] + 1) / 2)
    places = [scale(event) for event in range(1001)]
    assert places == sorted(places)


@needs("matplotlib")
def test_terms_are_stacked_in_the_order_of_every_table() -> None:
    """At the right edge stands what the last event left: weights of 12 MiB and a little, gradients of 6."""
    from matplotlib.figure import Figure

    axes, drawn = Figure().add_subplot(), timeline()
    _stack_terms(axes, drawn.moments, _Scale(drawn.spans))
    _, labels = axes.get_legend_handles_labels()
    assert labels == ["weights", "gradients", "saved activations", "one layer at work"]
    tops = [max(y for x, y in each.get_paths()[0].vertices if x == 1.0) for each in axes.collections[:2]]
    assert [top * GIB / MIB for top in tops] == pytest.approx([12, 18], abs=0.01)


@needs("matplotlib")
@pytest.mark.parametrize(
    ("limit_bytes", "n_labels", "failed"), [(None, 1, False), (64 * MIB, 2, False), (40 * MIB, 3, True)]
)
def test_a_limit_is_a_line_and_a_failure_a_mark(limit_bytes: int | None, n_labels: int, failed: bool) -> None:
    """62 MiB are reserved on a card with room to spare."""
    from matplotlib.figure import Figure

    axes, drawn = Figure().add_subplot(), timeline(limit_bytes)
    _lines(axes, drawn, _Scale(drawn.spans))
    assert ("out of memory" in [line.get_label() for line in axes.lines]) is failed
    assert len(axes.lines) == n_labels


@needs("matplotlib")
def test_a_picture_is_written_whole_or_refused_by_name(tmp_path: Path) -> None:
    """1,560 by 780 pixels.  Drawing takes half a second: this is the one test that does."""
    path = tmp_path / "timeline.png"
    draw_timeline(path, "A job", timeline(40 * MIB))
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert [int.from_bytes(content[at : at + 4]) for at in (16, 20)] == [1560, 780]
    with pytest.raises(InputFileError, match="nowhere"):
        draw_timeline(tmp_path / "nowhere" / "timeline.png", "A job", timeline())
