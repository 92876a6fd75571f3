"""The JSON of ``plan ... --trace``, ``planner/beside@1``: rows with differences, and both documents."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from planner.allocator.documents.trace_document import TraceDocument
from planner.documents import DocumentPart, document_text
from planner.report.prediction.document import PredictionDocument
from planner.report.trace.comparison import OtherVersion, PlanBesideTrace
from planner.report.trace.requests import Difference

BESIDE_SCHEMA_ID: Final = "planner/beside@1"


class PairPart(DocumentPart):
    """One amount as both give it; ``peak_bytes`` is the trace's peak, which differences are measured by."""

    name: str
    plan_bytes: int
    trace_bytes: int
    peak_bytes: int
    difference_bytes: int
    difference_of_peak: float


class PlacePart(DocumentPart):
    """Where the trace has its peak."""

    phase: str
    operator: str
    module: str


class BesideDocument(DocumentPart):
    """A prediction beside the trace of the same job."""

    schema_: Literal["planner/beside@1"] = Field(default=BESIDE_SCHEMA_ID, alias="schema")
    peak: PlacePart
    peaks: list[PairPart]
    allocated: list[PairPart]
    reserved: list[PairPart]
    terms: list[PairPart]
    host: list[PairPart]
    versions: list[OtherVersion]
    first_difference: Difference | None = Field(description="null where all requests are equal")
    prediction: PredictionDocument
    trace: TraceDocument


def beside_json(beside: PlanBesideTrace, prediction: PredictionDocument, traced: TraceDocument) -> str:
    """The rows and both documents as indented JSON, ending in a newline."""
    rows = {name: getattr(beside, name) for name in ("peaks", "allocated", "reserved", "terms", "host")}
    parts = {"versions": list(beside.versions), "first_difference": beside.difference}
    whole = {"prediction": prediction, "trace": traced}
    return document_text(BesideDocument.model_validate({"peak": beside, **rows, **parts, **whole}))
