"""A timeline as a picture: what was allocated by term, what was reserved, the phases, and the peak.

``measure trace`` and ``plan`` draw the same picture, so that what the libraries do and what the program says
lie side by side.  It needs matplotlib, which is imported when a picture is drawn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.allocator.documents.timeline import Moment, Span, Timeline
from planner.domain.term import ALLOCATED_TERM_ORDER, in_words
from planner.files.writing import whole_file
from planner.units import GIB, format_gib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Wider than the picture has pixels would be wasted.
PICTURE_MOMENTS = 1500
# One colour for each term that a trace can hold, dark where it stays, light where it comes and goes.
_COLOURS = {
    "weights": "#33567a",
    "quantization_constants": "#5f7f9f",
    "adapters": "#8a6fb0",
    "master_weights": "#24405c",
    "autocast_copies": "#9db7d0",
    "gradients": "#c2703d",
    "gradient_buckets": "#e0a070",
    "optimizer_states": "#6b8e4e",
    "optimizer_temporaries": "#a9c88c",
    "saved_activations": "#d9a441",
    "block_recompute": "#f0d090",
    "logits_and_loss": "#b5485d",
    "kv_cache": "#8f6bb3",
    "dequantization": "#7fb8b0",
    "gathered_parameters": "#4f9d94",
    "other_temporaries": "#b0b0b0",
}
_UNNAMED = "#d8d8d8"
_SHADES = {"load": 0.04, "backward": 0.05, "loss": 0.12, "adapters": 0.10}
# The loss is fifty events of many thousands, and often the peak:
# no phase is drawn narrower than this part of the width.
_NARROWEST = 0.055


def draw_timeline(path: str | Path, title: str, timeline: Timeline) -> None:
    """Write the picture (PNG) to ``path``; needs matplotlib.

    Raises:
        InputFileError: the file cannot be written.
    """
    # No window system is asked for: the figure is drawn without pyplot.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scale = _Scale(timeline.spans)
    figure = Figure(figsize=(13, 6.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    top_bytes = max(timeline.reserved_peak_bytes, timeline.near_limit_bytes or 0) * 1.18
    _shade_phases(axes, scale)
    _stack_terms(axes, timeline.moments, scale)
    _lines(axes, timeline, scale)
    _mark_peak(axes, timeline.peak, scale, top_bytes)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, top_bytes / GIB)
    axes.set_xticks(scale.borders, labels=[])
    axes.set_xlabel(
        f"{timeline.n_events:,} allocations and frees, in program order; short phases are widened"
    )
    axes.set_ylabel("GiB")
    axes.set_title(title, loc="left", fontsize=11)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9
    )
    with whole_file(path) as stream:
        FigureCanvasAgg(figure).print_png(stream)  # type: ignore[no-untyped-call]


class _Scale:
    """Event -> place from 0 to 1: in proportion within a phase,
    and each phase at least of the narrowest width.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        n_events = spans[-1].end
        widths = [max((span.end - span.start) / n_events, _NARROWEST) for span in spans]
        self.spans = tuple(spans)
        self.borders = [0.0]
        for width in widths:
            self.borders.append(self.borders[-1] + width / sum(widths))
        self._ends = [span.end for span in spans]

    def __call__(self, event: float) -> float:
        index = min(bisect_right(self._ends, event), len(self.spans) - 1)
        span, start, end = self.spans[index], self.borders[index], self.borders[index + 1]
        return start + (end - start) * (event - span.start) / (span.end - span.start)


def _shade_phases(axes: Axes, scale: _Scale) -> None:
    for span, start, end in zip(scale.spans, scale.borders, scale.borders[1:], strict=False):
        axes.axvspan(
            start,
            end,
            color="#000000",
            alpha=_SHADES.get(span.phase.removesuffix("_2"), 0.0),
            linewidth=0,
            zorder=0,
        )
        name = span.phase.replace("_", " ").replace("optimizer step", "optimizer\nstep")
        axes.text(
            (start + end) / 2,
            0.99,
            name,
            transform=axes.transAxes,
            ha="center",
            va="top",
            fontsize=8.5,
            color="#444444",
        )


def _stack_terms(axes: Axes, moments: Sequence[Moment], scale: _Scale) -> None:
    """Stacked areas as steps: what is held after an event is held until the next one."""
    names = {name for each in moments for name in each.terms}
    ordered = sorted(names, key=lambda name: ALLOCATED_TERM_ORDER.get(name, len(ALLOCATED_TERM_ORDER)))
    places = [*(scale(each.event) for each in moments), 1.0]
    layers = [[each.terms.get(name, 0) / GIB for each in (*moments, moments[-1])] for name in ordered]
    axes.stackplot(
        places,
        *layers,
        step="post",
        labels=[in_words(name) or "no term" for name in ordered],
        colors=[_COLOURS.get(name, _UNNAMED) for name in ordered],
        linewidth=0,
    )


def _lines(axes: Axes, timeline: Timeline, scale: _Scale) -> None:
    moments, limit_bytes = timeline.moments, timeline.limit_bytes
    places = [*(scale(each.event) for each in moments), 1.0]
    reserved = [each.reserved_bytes / GIB for each in (*moments, moments[-1])]
    axes.plot(
        places,
        reserved,
        drawstyle="steps-post",
        color="#111111",
        linewidth=1.3,
        label="reserved by the allocator",
    )
    if limit_bytes is None:
        return
    limit = f"limit {format_gib(limit_bytes)}{'' if timeline.near_limit_bytes else ', far above'}"
    axes.axhline(limit_bytes / GIB, color="#c00000", linewidth=1.2, linestyle="--", label=limit)
    if timeline.failed_event is not None:
        at = scale(timeline.failed_event)
        axes.plot([at], [limit_bytes / GIB], "X", color="#c00000", markersize=11, label="out of memory")


def _mark_peak(axes: Axes, peak: Moment, scale: _Scale, top_bytes: float) -> None:
    place = f"{peak.op.removeprefix('aten.') or 'no operator'}\n{peak.module or 'no module'}"
    at = scale(peak.event)
    on_the_right = at > 0.5
    arrow: dict[str, Any] = {"arrowstyle": "->", "color": "#111111", "linewidth": 1}
    axes.annotate(
        f"allocated peak {format_gib(peak.allocated_bytes)}, {peak.phase.replace('_', ' ')}\n{place}",
        xy=(at, peak.allocated_bytes / GIB),
        xytext=(at + (-0.03 if on_the_right else 0.03), 0.93 * top_bytes / GIB),
        ha="right" if on_the_right else "left",
        va="top",
        fontsize=9,
        arrowprops=arrow,
        bbox={"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "#888888", "alpha": 0.92},
        zorder=5,
    )
    axes.plot([at], [peak.allocated_bytes / GIB], "o", color="#111111", markersize=5, zorder=6)
