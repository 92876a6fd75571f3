"""Parts of documents, read from objects and from JSON; their text and their schemas."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from planner.documents import DocumentPart, at, at_or_none, document_schema, document_text


class Inner(DocumentPart):
    """A part."""

    size: int


class Made(DocumentPart):
    """A document whose fields lie elsewhere in an object."""

    schema_: Annotated[Literal["x@1"], Field(alias="schema")] = "x@1"
    deep: int = at("one", "two")
    maybe: int | None = at_or_none("some", "value")
    ratio: float = 0.5
    parts: list[Inner] = Field(default_factory=list)


def source(some: object = None, **changed: object) -> SimpleNamespace:
    """An object to read from."""
    given = {"schema": "x@1", "one": SimpleNamespace(two=2), "some": some, "parts": [SimpleNamespace(size=1)]}
    return SimpleNamespace(**given | changed)


def test_fields_are_read_where_an_object_keeps_them() -> None:
    """One attribute below the other; nothing where what should hold it is nothing."""
    found = Made.model_validate(source())
    assert (found.deep, found.maybe, found.parts) == (2, None, [Inner(size=1)])
    assert Made.model_validate(source(SimpleNamespace(value=7))).maybe == 7


def test_what_is_written_is_read_again() -> None:
    """JSON has the names of the fields and nothing else."""
    made = Made.model_validate(source(SimpleNamespace(value=7)))
    text = document_text(made)
    assert json.loads(text) == {"schema": "x@1", "deep": 2, "maybe": 7, "ratio": 0.5, "parts": [{"size": 1}]}
    assert Made.model_validate(json.loads(text)) == made
    with pytest.raises(ValidationError, match="colour"):
        Made.model_validate(json.loads(text) | {"colour": 1})


def test_any_terminal_can_print_a_document() -> None:
    """Letters, control characters and bytes of file names that are no text are escaped."""

    class Named(DocumentPart):
        name: str

    text = document_text(Named(name="é\x1b[31m"))
    assert text.isascii()
    assert "\x1b" not in text
    assert text.endswith("}\n")
    assert json.loads(text) == {"name": "é\x1b[31m"}


def test_no_document_has_a_number_that_is_none() -> None:
    """JSON knows neither infinity nor NaN."""
    for number in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="JSON"):
            document_text(Made.model_validate(source()).model_copy(update={"ratio": number}))


def test_a_schema_is_called_by_its_id() -> None:
    """Names are those of the document, not of the object."""
    schema = document_schema(Made)
    assert (schema["$id"], schema["$schema"].split("/")[2]) == ("x@1", "json-schema.org")
    assert {"schema", "deep", "maybe", "ratio", "parts"} == schema["properties"].keys()
