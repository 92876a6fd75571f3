"""A replayed history as JSON, ``measure/replay@1``:
the document that ``plan validate --history`` reads. Bytes are integers.
"""

from __future__ import annotations

from planner.allocator.documents.replay_document import REPLAY_SCHEMA_ID, ReplayDocument
from planner.allocator.documents.summary import Summary
from planner.documents import document_text


def replay_json(summary: Summary, recorded_bytes: int) -> str:
    """The replay beside ``recorded_bytes``, the most that the real allocator had reserved;
    terms at the peak of each phase.
    """
    result = summary.result if summary.verdict is None else summary.verdict
    document = {
        "schema": REPLAY_SCHEMA_ID,
        "events": summary.n_events,
        "outcome": result.outcome,
        "less_room_bytes": None if summary.otherwise is None else summary.otherwise.limit_bytes,
        "allocated_peak_bytes": summary.allocated_peak_bytes,
        "reserved_peak_bytes_replayed": result.peak_reserved_bytes,
        "reserved_peak_bytes_recorded": recorded_bytes,
        "peak": summary.peak,
        "phases": summary.phases,
    }
    return document_text(ReplayDocument.model_validate(document))
