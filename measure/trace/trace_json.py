"""What a trace says, as JSON: the document that ``plan --trace`` reads.  Bytes are integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from measure.trace.assumed import Assumed
from measure.trace.host_records import NO_HOST_MEMORY, HostMemory
from planner.allocator.documents.summary import Summary
from planner.allocator.documents.timeline import Moment
from planner.allocator.documents.trace_document import TRACE_SCHEMA_ID, TraceDocument
from planner.documents import document_text
from planner.domain.scenario import Assumption


def to_json(
    summary: Summary,
    timeline: Sequence[Moment],
    assumptions: Sequence[Assumption | Assumed],
    host: HostMemory = NO_HOST_MEMORY,
) -> str:
    """The summary as JSON; ``terms`` are those of :data:`planner.domain.term.TermName`, in its order."""
    shared = ("allocated_peak_bytes", "reserved_peak_bytes", "peak", "reserved_peak", "phases")
    document = {
        "schema": TRACE_SCHEMA_ID,
        **{name: getattr(summary, name) for name in shared},
        "timeline": timeline,
        "events": summary.n_events,
        "host": host,
        "verdict": None if summary.verdict is None else summary,
        "assumptions": [asdict(each) for each in assumptions],
    }
    return document_text(TraceDocument.model_validate(document))
