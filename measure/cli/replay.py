"""``measure replay FILE``: a recorded allocator history through the model of the allocator, beside what the real one did."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from measure.cli.said import size_bytes
from planner.errors import ExitCode
from planner.units import format_bytes


def replay_history(
    file: Annotated[str, typer.Argument(metavar="FILE", help="History that measure run --history wrote (.jsonl.gz)")],
    fits: Annotated[str | None, typer.Option("--fits", metavar="SIZE", help="Replay on a card that lets torch have SIZE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON")] = False,
) -> int:
    """Replay a recorded history: the reserved peak of the model against that of the real allocator."""
    from measure.trace.history import events_from_history, reserved_timeline, settings_from_history
    from measure.trace.history_file import read_history
    from measure.trace.replay import replay

    recorded = read_history(file)
    events = events_from_history(recorded.history, phase_marks=recorded.phase_marks)
    limit_bytes = None if fits is None else size_bytes("--fits", fits)
    result = replay(events, settings_from_history(recorded.history), limit_bytes=limit_bytes)
    real = max(reserved_timeline(recorded.history), default=0)
    numbers = {
        "events": len(events),
        "reserved_peak_bytes_replayed": result.peak_reserved_bytes,
        "reserved_peak_bytes_recorded": real,
        "outcome": result.outcome,
    }
    if as_json:
        sys.stdout.write(json.dumps(numbers, indent=2) + "\n")
    else:
        sys.stdout.write(f"{len(events)} events; outcome of the replay: {result.outcome}\n")
        sys.stdout.write(f"reserved peak: replayed {format_bytes(result.peak_reserved_bytes)}, recorded {format_bytes(real)}\n")
    return int(ExitCode.GPU_MEMORY_SHORT if result.out_of_memory is not None else ExitCode.FITS)
