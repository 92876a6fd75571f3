"""Rows that are invented: what they hold, and how it is told that a program asks for more."""

from __future__ import annotations

import json

import pytest

from measure.dry_run.invented_rows import InventedRows, Lacking, lacking_behind
from planner.errors import NotModelledError


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (KeyError("question"), Lacking(column="question")),
        (KeyError("text"), Lacking()),
        (KeyError("not a column"), Lacking()),
        # Datasets 5.2 arrow_dataset.py, table.py, formatting.py
        (ValueError("Column 'x' doesn't exist."), Lacking(column="x")),
        (
            ValueError("Column name ['x', 'y'] not in the dataset. Current columns: ['text']"),
            Lacking(column="x"),
        ),
        (ValueError("Original column name x not in the dataset. Current columns in"), Lacking(column="x")),
        (ValueError("Column to remove ['x'] not in the dataset. Current"), Lacking(column="x")),
        (ValueError("Column (x) not in table columns (['text'])."), Lacking(column="x")),
        (ValueError("Column 'x' not found in the dataset. Please provide"), Lacking(column="x")),
        (IndexError("Index 4999 out of range for dataset of size 1000."), Lacking(n_rows=9998)),
        (IndexError("Invalid key: 1000 is out of bounds for size 1000"), Lacking(n_rows=2000)),
        (ValueError("test_size=2000 should be either positive and"), Lacking(n_rows=4000)),
        (ValueError("something else"), Lacking()),
    ],
)
def test_what_a_program_misses_is_told_by_its_error(error: Exception, found: Lacking) -> None:
    """Of pandas, Datasets and plain rows; also where another error is raised from it."""
    assert lacking_behind(error, ("text",)) == found
    outer = RuntimeError("a worker failed")
    outer.__cause__ = error
    assert lacking_behind(outer, ("text",)) == found
    assert bool(found) == bool(found.column or found.n_rows)


def test_rows_hold_what_their_names_say() -> None:
    """A dialogue has as many words as a text, in two turns; no two rows are alike."""
    rows = InventedRows(10)
    assert rows.columns == ("text",)
    for number, name in enumerate(asked := ("messages", "label", "text")):
        # What nobody asked for gives way to what somebody does.
        rows = rows.with_(Lacking(column=name))
        assert rows.columns == asked[: number + 1]
    first, second = (json.loads(line) for line in rows.to_jsonl().splitlines()[:2])
    assert len(first["text"].split()) == 10
    assert [len(turn["content"].split()) for turn in first["messages"]] == [5, 5]
    assert (first["label"], second["label"]) == (0, 1)
    assert first["text"] != second["text"]


def test_there_is_an_end() -> None:
    """A program that asks for more and more is refused."""
    rows = InventedRows(1)
    with pytest.raises(NotModelledError, match=r"--data FILE"):
        rows.with_(Lacking(n_rows=10**6))
    for number in range(24):
        rows = rows.with_(Lacking(column=f"c{number}"))
    with pytest.raises(NotModelledError, match=r"c3"):
        rows.with_(Lacking(column="one more"))
