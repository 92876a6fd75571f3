"""``measure trace``: one training step of the real modules on fake tensors, replayed through the allocator."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from measure.cli.said import need, quiet, scenario_of, size_bytes
from planner.errors import ExitCode
from planner.intake.flags import Config, Force, OwnOptions

EXAMPLE = "measure trace --model 7b --method lora --seq 1024 --batch 2"
OPTIONS: OwnOptions = {
    "config": (Config, None),
    "force": (Force, False),
    "fits": (
        Annotated[str | None, typer.Option("--fits", metavar="SIZE", help="Replay on a card that lets torch have SIZE")],
        None,
    ),
    "all_layers": (Annotated[bool, typer.Option("--all-layers", help="Run every layer, not one period of them")], False),
    "as_json": (Annotated[bool, typer.Option("--json", help="Write JSON")], False),
}


def trace(**said: Any) -> int:
    """Run one training step of the real modules on fake tensors and replay its allocations; needs no GPU."""
    fits, as_json, all_layers = said.pop("fits"), said.pop("as_json"), said.pop("all_layers")
    limit_bytes = None if fits is None else size_bytes("--fits", fits)
    scenario = scenario_of(said, config=said.pop("config"), force=said.pop("force"), example=EXAMPLE)
    need("measure", "torch", "transformers", "peft", "accelerate")
    quiet()
    from measure.trace.program import TraceOptions, trace_events
    from measure.trace.report import summarize, to_json, to_text

    summary = summarize(trace_events(scenario, TraceOptions(all_layers)), limit_bytes)
    sys.stdout.write(to_json(summary, scenario.assumptions) if as_json else to_text(summary))
    full = summary.verdict is not None and summary.verdict.out_of_memory is not None
    return int(ExitCode.GPU_MEMORY_SHORT if full else ExitCode.FITS)
