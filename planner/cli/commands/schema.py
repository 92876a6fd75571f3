"""``plan schema``: the JSON Schema of each document."""

from __future__ import annotations

from importlib import import_module

from planner.cli.outcome import Outcome, json_text
from planner.errors import UnknownNameError

# The class of a document, or the function that gives its schema, by module: each is imported when asked for.
_SCHEMAS = {
    "prediction": ("planner.report.prediction.document", "PredictionDocument"),
    "bounds": ("planner.report.bounds.document", "BoundsDocument"),
    "check": ("planner.report.check.document", "CheckDocument"),
    "error": ("planner.report.error_document", "error_json_schema"),
    "record": ("planner.records.record_schema", "record_json_schema"),
    "search": ("planner.report.search.document", "SearchDocument"),
    "trace": ("planner.allocator.documents.trace_document", "TraceDocument"),
    "validate": ("planner.report.validation.document", "ValidationDocument"),
    "beside": ("planner.report.trace.document", "BesideDocument"),
    **{
        name: (f"planner.cli.commands.{name}", f"{name}_json_schema")
        for name in ("models", "gpus", "stacks", "rules")
    },
}
DOCUMENTS = tuple(_SCHEMAS)


def print_schema(document: str) -> Outcome:
    """JSON Schema of one kind of document.

    Raises:
        UnknownNameError: no such document.
    """
    if document not in _SCHEMAS:
        raise UnknownNameError("document", document[:60], DOCUMENTS, hint=f"allowed: {', '.join(DOCUMENTS)}")
    from planner.documents import document_schema

    module, name = _SCHEMAS[document]
    found = getattr(import_module(module), name)
    return Outcome(json_text(document_schema(found) if isinstance(found, type) else found()))
