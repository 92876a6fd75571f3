"""A replayed history as JSON, ``measure/replay@1``: the document that ``plan validate --history`` reads.  Bytes are integers."""

from __future__ import annotations

import json
from typing import Any

from planner.allocator.summary import Summary
from planner.allocator.timeline import Moment

REPLAY_SCHEMA_ID = "measure/replay@1"


def replay_json(summary: Summary, recorded_bytes: int) -> str:
    """The replay beside ``recorded_bytes``, the most that the real allocator had reserved; terms at the peak of each phase."""
    result = summary.result if summary.verdict is None else summary.verdict
    value: dict[str, Any] = {
        "schema": REPLAY_SCHEMA_ID,
        "events": summary.n_events,
        "outcome": result.outcome,
        "allocated_peak_bytes": summary.allocated_peak_bytes,
        "reserved_peak_bytes_replayed": result.peak_reserved_bytes,
        "reserved_peak_bytes_recorded": recorded_bytes,
        "peak": _moment(summary.peak),
        "phases": [
            {
                "phase": each.peaks.phase,
                "allocated_bytes": each.peaks.allocated_bytes,
                "reserved_bytes": each.peaks.reserved_bytes,
                "terms": _terms(each.at_peak),
            }
            for each in summary.phases
        ],
    }
    return json.dumps(value, indent=2) + "\n"


def _moment(moment: Moment) -> dict[str, Any]:
    return {"phase": moment.phase, "allocated_bytes": moment.allocated_bytes, "terms": _terms(moment)}


def _terms(moment: Moment) -> list[dict[str, Any]]:
    return [{"name": name, "bytes": size} for name, size in moment.terms.items()]
