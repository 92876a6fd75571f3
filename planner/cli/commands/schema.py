"""``plan schema``: the JSON Schema of each document."""

from __future__ import annotations

from planner.cli.outcome import Outcome, json_text
from planner.errors import UnknownNameError

DOCUMENTS = ("prediction", "bounds", "check", "error", "record", "search", "trace", "validate")


def print_schema(document: str) -> Outcome:
    """JSON Schema of one kind of document.

    Raises:
        UnknownNameError: no such document.
    """
    if document == "prediction":
        from planner.report.prediction.document import prediction_json_schema

        return Outcome(json_text(prediction_json_schema()))
    if document == "bounds":
        from planner.report.bounds.document import bounds_json_schema

        return Outcome(json_text(bounds_json_schema()))
    if document == "check":
        from planner.report.check.document import check_json_schema

        return Outcome(json_text(check_json_schema()))
    if document == "error":
        from planner.report.error_document import error_json_schema

        return Outcome(json_text(error_json_schema()))
    if document == "record":
        from planner.records.record_schema import record_json_schema

        return Outcome(json_text(record_json_schema()))
    if document == "search":
        from planner.report.search.document import search_json_schema

        return Outcome(json_text(search_json_schema()))
    if document == "trace":
        from planner.allocator.documents.trace_document import trace_json_schema

        return Outcome(json_text(trace_json_schema()))
    if document == "validate":
        from planner.report.validation.document import validation_json_schema

        return Outcome(json_text(validation_json_schema()))
    raise UnknownNameError("document", document[:60], DOCUMENTS, hint=f"allowed: {', '.join(DOCUMENTS)}")
