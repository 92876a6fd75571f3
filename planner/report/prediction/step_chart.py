"""Memory over the step as a chart, and the request at which a job that does not fit would stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.domain.prediction import FailedRequest, MemoryPrediction
from planner.domain.scenario import Scenario
from planner.domain.term import PHASE_WORDS
from planner.report.prediction.subject import Subject
from planner.report.render.chart import ALLOCATED, CACHED, CROSSED, LIMIT
from planner.report.render.layout import Chart, ChartPart, Column, Grid, Note, Row, Section
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.allocator.documents.timeline import Timeline

_NAMES: dict[str, tuple[str, ...]] = {
    "load": ("loading", "load"),
    "adapters": ("adapters", "lora"),
    "generation": ("generation", "gen"),
    "forward": ("forward", "fwd"),
    "loss": ("loss",),
    "backward": ("backward", "bwd"),
    "optimizer_step": ("optimizer step", "optimizer", "step"),
    "eval": ("evaluation", "eval"),
    "save": ("saving", "save"),
}
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def timeline_section(subject: Subject) -> Section:
    """What the allocator holds from loading to saving."""
    timeline = subject.timeline
    if timeline is None:
        return Section("", ())
    chart = _chart(timeline)
    legend = f"Drawn: {ALLOCATED} allocated, {CACHED} reserved and not in use"
    if timeline.limit_bytes is not None:
        mark = f"{LIMIT} " if chart.limit_bytes is not None else ""
        legend += f"; {mark}the card leaves {format_bytes(timeline.limit_bytes)} to the allocator"
        legend += f"; {CROSSED} out of memory" if chart.crossed else ""
    legend += ". As a picture: --plot FILE"
    return Section("Memory over the step in GiB", (chart, Note(legend, "dim")))


def _chart(timeline: Timeline) -> Chart:
    parts, crossed = [], None
    for index, span in enumerate(timeline.spans):
        inside = [moment for moment in timeline.moments if span.start <= moment.event < span.end]
        points = tuple((float(moment.allocated_bytes), float(moment.reserved_bytes)) for moment in inside)
        parts.append(ChartPart(_NAMES[span.phase.removesuffix("_2")], points))
        if timeline.failed_event is not None and span.start <= timeline.failed_event < span.end:
            crossed = index, (timeline.failed_event - span.start) / (span.end - span.start)
    return Chart(tuple(parts), timeline.near_limit_bytes, crossed)


def failed_section(subject: Subject) -> Section:
    """Where a job that does not fit would stop, and what would have saved it."""
    failed = subject.prediction.memory.failed
    if failed is None:
        return Section("", ())
    largest = f", the largest of {format_bytes(failed.largest_free_bytes)}" if failed.free_blocks else ""
    pieces = (
        f"{failed.free_blocks} free pieces of the cache, {format_bytes(failed.free_bytes)} in all{largest}"
    )
    rows = (
        ("when", PHASE_WORDS[failed.phase]),
        ("where", failed.where),
        ("operator", "to (a copy in another dtype)" if failed.op == "to" else failed.op),
        ("asks for", format_bytes(failed.n_bytes)),
        ("finds", f"{format_bytes(failed.unreserved_bytes)} outside of the cache; {pieces}"),
    )
    helps = tuple(Note(f"{text}.") for text in _rescues(failed, subject.prediction.memory, subject.scenario))
    return Section(
        "Where it runs out of memory", (Grid((Column(""), Column("")), tuple(map(Row, rows))), *helps)
    )


def _rescues(failed: FailedRequest, memory: MemoryPrediction, scenario: Scenario) -> Iterator[str]:
    """Whether memory in one piece, or the room that others take, would be enough."""
    if failed.fits_expandable:
        yield f"In one piece what is free would be enough: with {_EXPANDABLE} the job fits"
    elif failed.fits_expandable is not None:
        yield (
            f"In one piece what is free would be enough here, but even with {_EXPANDABLE} a later "
            "request fails"
        )
    elif not scenario.segments_grow:
        yield (
            "What is allocated and this request are more than the card has, so expandable "
            "segments do not help"
        )
    taken = scenario.hardware.gpu_reserved_bytes
    short = float(memory.must_have_bytes) - (memory.limit_bytes or 0)
    if 0 < short <= taken:
        yield f"With a --gpu-reserved of at most {format_bytes(taken - short)} the job fits"
