"""Documents of published schemas: their parts, their JSON Schemas, and their text,
which any terminal and any pipe can carry.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field


class DocumentPart(BaseModel):
    """A part of a document: read from any object with these attributes,
    or from JSON with these names and nothing else.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True, populate_by_name=True)


def at(*path: str, description: str | None = None) -> Any:
    """A field that an object keeps at ``path``, one attribute below the other."""
    return Field(validation_alias=AliasPath(*path), description=description)


def at_or_none(*path: str) -> Any:
    """The same, ``None`` where what should hold the last attribute is ``None`` itself."""
    return Field(validation_alias=AliasChoices(AliasPath(*path), AliasPath(*path[:-1])))


def document_text(document: BaseModel) -> str:
    """``document`` as indented JSON in ASCII:
    letters that an encoding lacks, control characters and bytes of file names that are no text, escaped.
    """
    return json.dumps(document.model_dump(mode="json", by_alias=True), indent=2, allow_nan=False) + "\n"


def document_schema(document: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema of a document with a field ``schema``, whose only value is the schema's id."""
    schema = document.model_json_schema(by_alias=True, mode="serialization")
    schema_id = document.model_fields["schema_"].default
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": schema_id, **schema}
