"""The JSON of ``measure replay``, ``measure/replay@1``, which ``plan validate --history`` reads.
Bytes are integers.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from planner.allocator.documents.trace_document import Bytes, TracedTerms
from planner.allocator.replay import Outcome
from planner.documents import DocumentPart, at
from planner.domain.term import TermName

REPLAY_SCHEMA_ID: Final = "measure/replay@1"


class ReplayedMoment(DocumentPart):
    """The moment when most was allocated; the phase is empty where the history has no marks."""

    phase: str
    allocated_bytes: Bytes
    terms: TracedTerms


class ReplayedPhase(DocumentPart):
    """Peaks of one phase, and its terms when most was allocated in it."""

    phase: str = at("peaks", "phase")
    allocated_bytes: Bytes = at("peaks", "allocated_bytes")
    reserved_bytes: Bytes = at("peaks", "reserved_bytes")
    terms: TracedTerms = at("at_peak", "terms")


class ReplayDocument(DocumentPart):
    """A recorded history, replayed.  Terms are told by when a block was made and when it was let go.
    ``less_room_bytes``: a limit with which it would end otherwise.
    """

    schema_: Annotated[Literal["measure/replay@1"], Field(alias="schema")]
    events: Annotated[int, Field(gt=0)]
    outcome: Outcome
    less_room_bytes: Bytes | None = None
    allocated_peak_bytes: Bytes
    reserved_peak_bytes_replayed: Bytes
    reserved_peak_bytes_recorded: Bytes
    peak: ReplayedMoment
    phases: list[ReplayedPhase]


# What a history without modules can tell apart -> the terms of a prediction that fall under it.
GROUPS: dict[str, tuple[TermName, ...]] = {
    "weights": ("weights", "quantization_constants", "master_weights"),
    "adapters": ("adapters",),
    "gradients": ("gradients", "gradient_buckets"),
    "optimizer states": ("optimizer_states",),
    "optimizer temporaries": ("optimizer_temporaries",),
    "saved activations": ("saved_activations", "autocast_copies"),
    "logits and loss": ("logits_and_loss",),
    "temporaries of a pass": (
        "block_recompute",
        "dequantization",
        "gathered_parameters",
        "other_temporaries",
    ),
}
