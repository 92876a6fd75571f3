"""What a trace says, as JSON: the document that ``plan --trace`` reads.  Bytes are integers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from measure.trace.host import NO_HOST_MEMORY, HostMemory
from planner.allocator.replay import ReplayResult
from planner.allocator.summary import PhaseSummary, Summary
from planner.allocator.timeline import Moment
from planner.domain.scenario import Assumption

TRACE_SCHEMA_ID = "measure/trace@1"


def to_json(
    summary: Summary, timeline: Sequence[Moment], assumptions: Sequence[Assumption], host: HostMemory = NO_HOST_MEMORY
) -> str:
    """The summary as JSON; ``terms`` are those of :data:`planner.domain.term.TermName`, in its order."""
    value: dict[str, Any] = {
        "schema": TRACE_SCHEMA_ID,
        "allocated_peak_bytes": summary.allocated_peak_bytes,
        "reserved_peak_bytes": summary.reserved_peak_bytes,
        "peak": _moment(summary.peak),
        "reserved_peak": _moment(summary.reserved_peak),
        "phases": [_phase(each) for each in summary.phases],
        "timeline": [
            {
                "event": each.event,
                "phase": each.phase,
                "allocated_bytes": each.allocated_bytes,
                "reserved_bytes": each.reserved_bytes,
                "unused_bytes": each.unused_bytes,
            }
            for each in timeline
        ],
        "events": summary.n_events,
        "host": _host(host),
        "verdict": None if summary.verdict is None else _verdict(summary.verdict, summary.expandable),
        "assumptions": [asdict(each) for each in assumptions],
    }
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def _host(host: HostMemory) -> dict[str, Any]:
    terms = [
        {"name": each.name, "kind": each.kind, "bytes": each.n_bytes, "requested_bytes": each.requested_bytes}
        for each in host.holdings
    ]
    return {
        "processes_per_node": host.processes,
        "per_process_bytes": host.per_process_bytes,
        "per_node_bytes": host.per_node_bytes,
        "setup_peak_per_process_bytes": host.setup_peak_bytes,
        "terms": terms,
    }


def _moment(moment: Moment) -> dict[str, Any]:
    return {
        "event": moment.event,
        "phase": moment.phase,
        "operator": moment.op,
        "module": moment.module,
        "allocated_bytes": moment.allocated_bytes,
        "reserved_bytes": moment.reserved_bytes,
        "unused_bytes": moment.unused_bytes,
        "terms": [{"name": name, "bytes": size} for name, size in moment.terms.items()],
    }


def _phase(each: PhaseSummary) -> dict[str, Any]:
    peaks = each.peaks
    sizes = {"phase": peaks.phase, "allocated_bytes": peaks.allocated_bytes, "reserved_bytes": peaks.reserved_bytes}
    return {**sizes, "at_peak": _moment(each.at_peak)}


def _verdict(verdict: ReplayResult, expandable: ReplayResult | None) -> dict[str, Any]:
    failed = verdict.out_of_memory
    return {
        "limit_bytes": verdict.limit_bytes,
        "outcome": verdict.outcome,
        "reserved_peak_bytes": verdict.peak_reserved_bytes,
        "cache_releases": verdict.n_retries,
        "with_expandable_segments": None if expandable is None else expandable.outcome,
        "out_of_memory": None
        if failed is None
        else {
            "phase": failed.phase,
            "operator": failed.op,
            "module": failed.module,
            "requested_bytes": failed.requested_bytes,
            "attempted_bytes": failed.attempted_bytes,
            "allocated_bytes": failed.allocated_bytes,
            "reserved_bytes": failed.reserved_bytes,
        },
    }
