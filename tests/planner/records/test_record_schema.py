"""The schema of a record: its columns, and what a line of JSONL may hold."""

from __future__ import annotations

import csv
import json

import pytest
from pydantic import ValidationError

from planner.catalog.location import data_dir
from planner.records import (
    COLUMNS,
    record_json_schema,
)
from planner.records.record_schema import REQUIRED_COLUMNS, border_model
from planner.words import words

PUBLISHED = data_dir() / "published"


def test_the_json_schema_describes_a_line_of_jsonl() -> None:
    """The published schema has an id, forbids the unknown,
    and lists exactly what a line may and must hold.
    """
    schema = record_json_schema()
    assert schema["$id"] == "planner/record@1"
    assert schema["additionalProperties"] is False
    assert list(schema["properties"]) == ["schema", *COLUMNS, "raw", "environment", "quality"]
    assert set(schema["required"]) == set(words("schema id source source_group model gpu method outcome"))
    assert json.loads(json.dumps(schema)) == schema


def test_columns_are_those_of_the_published_files() -> None:
    """The type has the columns of the published files, in their order;
    those that no record needs may be absent.
    """
    for path in PUBLISHED.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as stream:
            header = tuple(next(csv.reader(stream)))
        assert header == tuple(name for name in COLUMNS if name in header)
        assert set(header) >= set(REQUIRED_COLUMNS)


ROW = {
    "id": "r1", "source": "s", "source_group": "g", "model": "llama-2-7b", "gpu": "rtx4090", "method": "lora",
    "outcome": "ok",
}  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("seq_len", 1),
        ("epochs", 0.001),
        ("memory_limit_mib", 0.5),
        ("peak_memory_percentile", 100.0),
        ("nodes", None),
        ("lora_targets", ("q_proj", "v_proj")),
        ("dora", False),
    ],
)
def test_a_value_within_its_range_passes(column: str, value: object) -> None:
    """As it stands: nothing is turned into another type."""
    assert getattr(border_model().model_validate({**ROW, column: value}), column) == value


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("seq_len", 0),
        ("seq_len", True),
        ("seq_len", "512"),
        ("seq_len", 2**40),
        ("step_time_s", 0.0),
        ("step_time_s", float("inf")),
        ("peak_memory_percentile", 100.1),
        # ';' parts a list in CSV, and '#' begins a comment.
        ("lora_targets", ("q;v",)),
        ("lora_targets", ("",)),
        ("id", "#1"),
        ("notes", "a\x00b"),
        ("notes", ""),
        ("outcome", "fine"),
        ("colour", 1),
    ],
)
def test_a_value_out_of_its_range_is_refused(column: str, value: object) -> None:
    """By the name of its column."""
    with pytest.raises(ValidationError) as caught:
        border_model().model_validate({**ROW, column: value})
    assert column in {place["loc"][0] for place in caught.value.errors()}


def test_every_number_of_a_record_has_a_range() -> None:
    """JSON Schema says it, too."""
    for name, column in record_json_schema()["properties"].items():
        for each in column.get("anyOf", [column]):
            if each.get("type") in ("integer", "number"):
                assert "maximum" in each, name
