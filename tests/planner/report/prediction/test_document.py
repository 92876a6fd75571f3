"""The published schema of a prediction."""

from __future__ import annotations

import json

from planner.documents import document_schema
from planner.report.prediction.document import PredictionDocument
from planner.report.prediction.subject import Subject
from planner.report.prediction.to_json import to_json
from tests.planner.report.prediction.made import (
    prediction,
    scenario,
)


def test_every_key_of_the_json_is_in_the_schema() -> None:
    """The published schema describes each object of a real document, key by key, and forbids others."""
    schema = document_schema(PredictionDocument)

    def check(value: object, node: dict[str, object], place: str) -> None:
        if "$ref" in node:
            node = schema["$defs"][str(node["$ref"]).rsplit("/", 1)[1]]
        options = [option for option in node.get("anyOf", []) if option.get("type") != "null"]  # type: ignore[attr-defined]
        if options and value is not None:
            check(value, options[0], place)
        elif isinstance(value, dict) and node.get("additionalProperties") is False:
            assert set(value) == set(node["required"]) | ({"schema"} & set(value)), place  # type: ignore[call-overload]
            for key, item in value.items():
                check(item, node["properties"][key], f"{place}.{key}")  # type: ignore[index]
        elif isinstance(value, list) and "items" in node:
            for item in value:
                check(item, node["items"], place)  # type: ignore[arg-type]

    check(json.loads(to_json(Subject(scenario(), prediction(), explain=True))), schema, "$")
    assert schema["additionalProperties"] is False
