"""Lists of catalog entries and rules in the three formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import GenericAlias
from typing import Any, Literal

from planner.cli.outcome import Outcome, human_text, json_text
from planner.report.render.layout import Column, Grid, Note, Row, Section


def listing(
    kind: str, document: Mapping[str, Any], sections: Sequence[Section], output_format: str
) -> Outcome:
    """``document`` as the JSON document ``planner/<kind>@1``, or ``sections`` for people."""
    if output_format == "json":
        return Outcome(json_text({"schema": f"planner/{kind}@1", **document}))
    if output_format == "markdown":
        from planner.report.render.markdown import to_markdown

        return Outcome(to_markdown(sections))
    return Outcome(human_text(sections))


def list_schema(kind: str, **entries: Any) -> dict[str, Any]:
    """JSON Schema of the document ``planner/<kind>@1``, by what each of its lists holds."""
    from pydantic import Field, create_model

    from planner.documents import DocumentPart, document_schema

    schema_id = f"planner/{kind}@1"
    lists: dict[str, Any] = {name: (GenericAlias(list, entry), ...) for name, entry in entries.items()}
    mark: Any = (Literal[schema_id], Field(default=schema_id, alias="schema"))
    return document_schema(create_model(kind, __base__=DocumentPart, schema_=mark, **lists))


def table(title: str, columns: Sequence[Column], rows: Sequence[tuple[str, ...]], note: str = "") -> Section:
    """One grid under a title, with a remark below it."""
    grid = Grid(tuple(columns), tuple(Row(cells) for cells in rows))
    return Section(title, (grid, Note(note, "dim")) if note else (grid,))
