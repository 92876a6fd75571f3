"""The JSON of bounds, ``planner/bounds@1``.  Bytes are integers."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from planner.catalog.unmodelled import Range
from planner.documents import DocumentPart, at, document_text
from planner.domain.prediction import Verdict
from planner.domain.term import TermName
from planner.report.bounds.bounded import Bounded
from planner.report.prediction.document import AssumptionPart, Bytes, MaybeBytes
from planner.version import __version__

BOUNDS_SCHEMA_ID: Final = "planner/bounds@1"


class BoundsPart(DocumentPart):
    """Bounds of one GPU's memory, for an architecture that is not modelled.

    ``bounds_only``: always true, and no field of a prediction.  ``certain_bytes``: weights, states and
    gradients; ``outside_bytes``: context and NCCL.  ``range``: how many times as much as a plain decoder of
    its sizes known architectures need for the rest.  ``settle``: the command that leaves nothing open.
    """

    bounds_only: Literal[True] = True
    architecture: str
    verdict: Verdict
    low_bytes: Bytes = at("bounds", "low_bytes")
    high_bytes: Bytes = at("bounds", "high_bytes")
    limit_bytes: MaybeBytes = at("bounds", "limit_bytes")
    certain_bytes: dict[TermName, Bytes] = at("bounds", "certain")
    outside_bytes: Bytes = at("bounds", "outside_bytes")
    range: Range = at("bounds", "range")
    parameters: int = at("scenario", "model", "param_count")
    model: str = at("scenario", "model", "id")
    stack: str = at("scenario", "stack", "id")
    settle: str
    warnings: list[str] = at("scenario", "warnings")
    assumptions: list[AssumptionPart] = at("scenario", "assumptions")


class BoundsDocument(DocumentPart):
    """What ``plan`` says of a job whose architecture is not modelled."""

    schema_: Literal["planner/bounds@1"] = Field(default=BOUNDS_SCHEMA_ID, alias="schema")
    version: str
    exit_code: Annotated[int, Field(ge=0, le=6)]
    bounds: BoundsPart


def bounds_json(bounded: Bounded) -> str:
    """The bounds as indented JSON, ending in a newline."""
    parts = {"version": __version__, "exit_code": bounded.exit_code, "bounds": bounded}
    return document_text(BoundsDocument.model_validate(parts))
