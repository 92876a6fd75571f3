"""``measure trace``: one training step of the real modules on fake tensors, replayed through the allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from measure.cli.said import need, quiet, scenario_of, size_bytes
from measure.output import write_remark, write_result
from measure.trace.report import to_text
from measure.trace.to_json import to_json
from planner.allocator.events import AllocEvent, write_jsonl
from planner.allocator.settings import parse_settings
from planner.allocator.summary import Summary, summarize, timeline_of, timeline_over
from planner.catalog.hf_config import model_from_config
from planner.domain.job_line import picture_title
from planner.domain.model import ModelSpec
from planner.domain.scenario import Scenario
from planner.errors import ExitCode, UnknownArchitectureError
from planner.files.writing import check_writable
from planner.intake.flags import Config, Force, OwnOptions

EXAMPLE = "measure trace --model 7b --method lora --seq 1024 --batch 2"
_LIBRARIES = ("torch", "transformers", "peft", "accelerate")
OPTIONS: OwnOptions = {
    "config": (Config, None),
    "force": (Force, False),
    "fits": (
        Annotated[str | None, typer.Option("--fits", metavar="SIZE", help="Replay on a card that lets torch have SIZE")],
        None,
    ),
    "allocator": (
        Annotated[str | None, typer.Option("--allocator", metavar="TEXT", help="Settings as in PYTORCH_CUDA_ALLOC_CONF")],
        None,
    ),
    "plot": (Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Draw the timeline as a PNG")], None),
    "export": (
        Annotated[str | None, typer.Option("--export", metavar="FILE", help="Write a snapshot for PyTorch's memory visualiser")],
        None,
    ),
    "events": (
        Annotated[str | None, typer.Option("--events", metavar="FILE", help="Write every allocation and free, one line each")],
        None,
    ),
    "all_layers": (Annotated[bool, typer.Option("--all-layers", help="Run every layer, not one period of them")], False),
    "as_json": (Annotated[bool, typer.Option("--json", help="Write JSON")], False),
}


@dataclass(frozen=True, slots=True)
class TraceOutput:
    """How to answer, beside what the job is."""

    fits: str | None
    allocator: str | None
    plot: str | None
    export: str | None
    events: str | None
    all_layers: bool
    as_json: bool


def trace(**said: Any) -> int:
    """Run one training step of the real modules on fake tensors and replay its allocations; needs no GPU."""
    answer = TraceOutput(**{field.name: said.pop(field.name) for field in fields(TraceOutput)})
    # Everything that can be wrong is found before the work begins.
    limit_bytes = None if answer.fits is None else size_bytes("--fits", answer.fits)
    settings = parse_settings(answer.allocator or "")
    said_apart = {"config": said.pop("config"), "force": said.pop("force")}
    scenario = scenario_of(said, **said_apart, example=EXAMPLE, reader=_described)
    for path in (answer.plot, answer.export, answer.events):
        if path is not None:
            check_writable(path)
    if answer.plot is not None:
        need("plots", "matplotlib")
    need("measure", *_LIBRARIES)
    quiet()
    from measure.trace.program import TraceOptions, trace_step

    traced = trace_step(scenario, TraceOptions(answer.all_layers))
    events, host = traced.events, traced.host
    summary = summarize(events, limit_bytes, settings)
    _write_files(answer, scenario, events, summary)
    timeline = timeline_of(events, summary)
    write_result(to_json(summary, timeline, scenario.assumptions, host) if answer.as_json else to_text(summary, host))
    full = summary.verdict is not None and summary.verdict.out_of_memory is not None
    return int(ExitCode.GPU_MEMORY_SHORT if full else ExitCode.FITS)


def _described(fields: Mapping[str, Any], where: str) -> ModelSpec:
    """A model that the catalog does not have: by formulas, or by its modules where there are none."""
    try:
        return model_from_config(fields, where)
    except UnknownArchitectureError as error:
        need("measure", *_LIBRARIES)
        quiet()
        from measure.trace.foreign import described_by_modules

        model = described_by_modules(fields, error)
    write_remark(f"the prediction has no reader for '{model.architecture}'; its modules are traced")
    return model


def _write_files(answer: TraceOutput, scenario: Scenario, events: list[AllocEvent], summary: Summary) -> None:
    if answer.plot is not None:
        from planner.allocator.picture import PICTURE_MOMENTS, draw_timeline

        draw_timeline(answer.plot, picture_title(scenario), timeline_over(events, summary, PICTURE_MOMENTS))
    if answer.export is not None:
        from planner.allocator.export import write_snapshot

        write_snapshot(answer.export, events, answer.allocator or "")
    if answer.events is not None:
        write_jsonl(answer.events, events)
