"""``measure replay FILE``: a recorded allocator history through the model of the allocator,
beside what the real one did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from measure.cli.job_flags import size_bytes
from measure.output import write_result
from measure.trace.report import verdict_sentence
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.allocator.documents.summary import Summary
    from planner.allocator.replay import ReplayResult


def replay_history(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="History that measure run --history wrote (.jsonl.gz)")
    ],
    fits: Annotated[
        str | None, typer.Option("--fits", metavar="SIZE", help="Replay on a card that lets torch have SIZE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON")] = False,
) -> int:
    """Replay a recorded history: the reserved peak of the model against that of the real allocator."""
    from measure.run.replay_json import replay_json
    from planner.allocator.documents.history import (
        events_from_history,
        reserved_timeline,
        settings_from_history,
    )
    from planner.allocator.documents.history_file import read_history
    from planner.allocator.documents.summary import summarize
    from planner.allocator.lifetimes import with_terms

    limit_bytes = None if fits is None else size_bytes("--fits", fits)
    recorded = read_history(file)
    events = with_terms(events_from_history(recorded.history, phase_marks=recorded.phase_marks))
    summary = summarize(events, limit_bytes, settings_from_history(recorded.history))
    result = summary.result if summary.verdict is None else summary.verdict
    real = max(reserved_timeline(recorded.history), default=0)
    write_result(replay_json(summary, real) if as_json else _text(summary, result, real))
    return int(summary.exit_code)


def _text(summary: Summary, result: ReplayResult, real: int) -> str:
    peak = summary.peak
    lines = [] if summary.verdict is None else [verdict_sentence(summary.verdict, summary.otherwise)]
    lines += [
        f"{summary.n_events} events; outcome of the replay: {result.outcome}",
        f"reserved peak: replayed {format_bytes(result.peak_reserved_bytes)}, recorded {format_bytes(real)}",
        (
            f"most allocated: {format_bytes(peak.allocated_bytes)} in {peak.phase or 'no phase'}; by birth "
            "and end of each block:"
        ),
        *(f"  {name.replace('_', ' '):24}{format_bytes(size):>12}" for name, size in peak.terms.items()),
    ]
    return "\n".join(lines) + "\n"
