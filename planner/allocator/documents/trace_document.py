"""The JSON of ``measure trace``, ``measure/trace@1``: written by ``measure``,
read by ``plan --trace``. Bytes are integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, AliasPath, BeforeValidator, Field

from planner.allocator.replay import Outcome
from planner.documents import DocumentPart, at
from planner.domain.term import Phase, TermName
from planner.errors import ExitCode

TRACE_SCHEMA_ID: Final = "measure/trace@1"

Bytes = Annotated[int, Field(ge=0)]


class TracedTerm(DocumentPart):
    """Bytes of the allocator's blocks that one term holds."""

    name: TermName
    bytes: Bytes


def _listed(terms: Any) -> Any:
    return (
        [{"name": name, "bytes": size} for name, size in terms.items()]
        if isinstance(terms, Mapping)
        else terms
    )


TracedTerms = Annotated[list[TracedTerm], BeforeValidator(_listed)]


class TracedMoment(DocumentPart):
    """What was held after one event, and the operator and module of that event."""

    event: Annotated[int, Field(ge=0)]
    phase: Phase
    operator: str = at("op")
    module: str
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    unused_bytes: Bytes
    terms: TracedTerms


class TracedPhase(DocumentPart):
    """Peaks of one phase, and the moment when most was allocated in it."""

    phase: Phase = at("peaks", "phase")
    allocated_bytes: Bytes = at("peaks", "allocated_bytes")
    reserved_bytes: Bytes = at("peaks", "reserved_bytes")
    at_peak: TracedMoment


class TimelinePoint(DocumentPart):
    """One point of the timeline; ``unused_bytes`` is reserved less allocated."""

    event: Annotated[int, Field(ge=0)]
    phase: Phase
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    unused_bytes: Bytes


class TracedFailure(DocumentPart):
    """Where the card was full, and for what."""

    phase: Phase
    operator: str = at("op")
    module: str
    requested_bytes: Bytes
    attempted_bytes: Bytes
    allocated_bytes: Bytes
    reserved_bytes: Bytes


class TracedVerdict(DocumentPart):
    """The replay with the most room that the card may leave.  Where it failed, with expandable segments, too;
    with less room, where that ends otherwise.
    """

    limit_bytes: Bytes = at("verdict", "limit_bytes")
    outcome: Outcome = at("verdict", "outcome")
    reserved_peak_bytes: Bytes = at("verdict", "peak_reserved_bytes")
    cache_releases: Annotated[int, Field(ge=0)] = at("verdict", "n_retries")
    with_expandable_segments: Outcome | None = Field(
        default=None, validation_alias=AliasChoices(AliasPath("expandable", "outcome"), "expandable")
    )
    less_room_bytes: Bytes | None = Field(
        default=None, validation_alias=AliasChoices(AliasPath("otherwise", "limit_bytes"), "otherwise")
    )
    out_of_memory: TracedFailure | None = at("verdict", "out_of_memory")

    @property
    def exit_code(self) -> ExitCode:
        """As of a prediction."""
        if self.less_room_bytes is not None:
            return ExitCode.UNCERTAIN
        return ExitCode.FITS if self.out_of_memory is None else ExitCode.GPU_MEMORY_SHORT


class TracedHostTerm(DocumentPart):
    """Host memory of one name and kind in one process; ``bytes`` after the rounding of pinned memory."""

    name: Literal[
        "offloaded_optimizer",
        "offloaded_gradients",
        "upload_buffer",
        "offloaded_parameters",
        "paged_optimizer",
        "pinned_cache",
    ]
    kind: Literal["pageable", "pinned", "managed"]
    bytes: Bytes = at("n_bytes")
    requested_bytes: Bytes


class TracedHost(DocumentPart):
    """What offload and paged optimizer states take in host memory while the job trains,
    and at most while buffers are made.
    """

    processes_per_node: Annotated[int, Field(gt=0)] = at("processes")
    per_process_bytes: Bytes
    per_node_bytes: Bytes
    setup_peak_per_process_bytes: Bytes = at("setup_peak_bytes")
    terms: list[TracedHostTerm] = at("holdings")


class TraceDocument(DocumentPart):
    """A traced training step."""

    schema_: Literal["measure/trace@1"] = Field(default=TRACE_SCHEMA_ID, alias="schema")
    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes
    peak: TracedMoment
    reserved_peak: TracedMoment
    phases: list[TracedPhase]
    timeline: list[TimelinePoint]
    events: Annotated[int, Field(gt=0)]
    host: TracedHost
    verdict: TracedVerdict | None
    assumptions: list[dict[str, Any]]
