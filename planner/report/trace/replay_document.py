"""The JSON of ``measure replay``, ``measure/replay@1``, as ``plan validate --history`` reads it.  Bytes are integers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.domain.term import TermName
from planner.report.trace.trace_document import Bytes, TracedTerm


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReplayedMoment(_Part):
    """The moment when most was allocated; the phase is empty where the history has no marks."""

    phase: str
    allocated_bytes: Bytes
    terms: list[TracedTerm]


class ReplayedPhase(_Part):
    """Peaks of one phase, and its terms when most was allocated in it."""

    phase: str
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    terms: list[TracedTerm]


class ReplayDocument(_Part):
    """A recorded history, replayed.  Terms are told by when a block was made and when it was let go."""

    schema_: Annotated[Literal["measure/replay@1"], Field(alias="schema")]
    events: Annotated[int, Field(gt=0)]
    outcome: Literal["fits", "fits_after_retry", "out_of_memory"]
    allocated_peak_bytes: Bytes
    reserved_peak_bytes_replayed: Bytes
    reserved_peak_bytes_recorded: Bytes
    peak: ReplayedMoment
    phases: list[ReplayedPhase]


# What a history without modules can tell apart -> the terms of the closed form that fall under it.
GROUPS: dict[str, tuple[TermName, ...]] = {
    "weights": ("weights", "quantization_constants", "master_weights"),
    "adapters": ("adapters",),
    "gradients": ("gradients", "gradient_buckets"),
    "optimizer states": ("optimizer_states",),
    "optimizer temporaries": ("optimizer_temporaries",),
    "saved activations": ("saved_activations", "autocast_copies"),
    "logits and loss": ("logits_and_loss",),
    "temporaries of a pass": ("block_recompute", "dequantization", "gathered_parameters", "other_temporaries"),
}
