"""The JSON form of a failure, ``planner/error@1``:
what a script reads where it asked for JSON and there is no answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

ERROR_SCHEMA_ID: Final = "planner/error@1"


@dataclass(frozen=True, slots=True)
class ErrorPart:
    """``code`` is the exit code of the process, ``suggestions`` are the nearest names that are known,
    the nearest first.
    """

    code: int
    message: str
    suggestions: list[str]


@dataclass(frozen=True, slots=True)
class ErrorDocument:
    """Why there is no answer."""

    schema: str
    error: ErrorPart


def error_json(code: int, message: str, suggestions: Sequence[str]) -> str:
    """The failure as indented JSON, ending in a newline; needs nothing but Python,
    because what fails may be an import.
    """
    document = ErrorDocument(ERROR_SCHEMA_ID, ErrorPart(code, message, list(suggestions)))
    return json.dumps(asdict(document), indent=2) + "\n"


def error_json_schema() -> dict[str, Any]:
    """JSON Schema of :class:`ErrorDocument`."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(ErrorDocument).json_schema(mode="serialization")
    schema["properties"]["schema"]["const"] = ERROR_SCHEMA_ID
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": ERROR_SCHEMA_ID, **schema}
