"""The JSON of ``measure trace``, ``measure/trace@1``, as ``plan --trace`` reads it.  Bytes are integers."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.domain.term import Phase, TermName

TRACE_SCHEMA_ID: Final = "measure/trace@1"

Bytes = Annotated[int, Field(ge=0)]


_Outcome = Literal["fits", "fits_after_retry", "out_of_memory"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TracedTerm(_Part):
    """Bytes of the allocator's blocks that one term holds."""

    name: TermName
    bytes: Bytes


class Moment(_Part):
    """What was held after one event, and the operator and module of that event."""

    event: Annotated[int, Field(ge=0)]
    phase: Phase
    operator: str
    module: str
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    unused_bytes: Bytes
    terms: list[TracedTerm]


class TracedPhase(_Part):
    """Peaks of one phase, and the moment when most was allocated in it."""

    phase: Phase
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    at_peak: Moment


class TimelinePoint(_Part):
    """One point of the timeline; ``unused_bytes`` is reserved less allocated."""

    event: Annotated[int, Field(ge=0)]
    phase: Phase
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    unused_bytes: Bytes


class TracedFailure(_Part):
    """Where the card was full, and for what."""

    phase: Phase
    operator: str
    module: str
    requested_bytes: Bytes
    attempted_bytes: Bytes
    allocated_bytes: Bytes
    reserved_bytes: Bytes


class TracedVerdict(_Part):
    """The replay on a card of limited size; with expandable segments as well, where it failed without them."""

    limit_bytes: Bytes
    outcome: _Outcome
    reserved_peak_bytes: Bytes
    cache_releases: Annotated[int, Field(ge=0)]
    with_expandable_segments: _Outcome | None = None
    out_of_memory: TracedFailure | None


class TracedHostTerm(_Part):
    """Host memory of one name and kind in one process; ``bytes`` after the rounding of pinned memory."""

    name: Literal[
        "offloaded_optimizer", "offloaded_gradients", "upload_buffer", "offloaded_parameters", "paged_optimizer", "pinned_cache"
    ]
    kind: Literal["pageable", "pinned", "managed"]
    bytes: Bytes
    requested_bytes: Bytes


class TracedHost(_Part):
    """What offload and paged optimizer states take in host memory while the job trains, and at most while buffers are made."""

    processes_per_node: Annotated[int, Field(gt=0)]
    per_process_bytes: Bytes
    per_node_bytes: Bytes
    setup_peak_per_process_bytes: Bytes
    terms: list[TracedHostTerm]


class TraceDocument(_Part):
    """A traced training step."""

    schema_: Annotated[Literal["measure/trace@1"], Field(alias="schema")]
    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes
    peak: Moment
    reserved_peak: Moment
    phases: list[TracedPhase]
    timeline: list[TimelinePoint]
    events: Annotated[int, Field(gt=0)]
    host: TracedHost
    verdict: TracedVerdict | None
    assumptions: list[dict[str, Any]]


def trace_json_schema() -> dict[str, Any]:
    """JSON Schema of the document."""
    return TraceDocument.model_json_schema(by_alias=True)
