"""One cell of CSV and one value: each way, and what is no value of a column."""

from __future__ import annotations

from typing import Any

import pytest

from planner.records.cells import format_cell, parse_cell


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("seq_len", "", None),
        ("lora_targets", "", ()),
        ("seq_len", "512", 512),
        ("seq_len", "-3", -3),
        ("seq_len", "512.0", "512.0"),
        ("seq_len", "0x10", "0x10"),
        ("step_time_s", "1.5", 1.5),
        ("step_time_s", ".5", 0.5),
        ("step_time_s", "2e-3", 0.002),
        ("step_time_s", "1e999", "1e999"),
        ("step_time_s", "nan", "nan"),
        ("step_time_s", "1_000", "1_000"),
        ("step_time_s", "٣", "٣"),
        ("censored", "TRUE", True),
        ("censored", "false", False),
        ("censored", "1", "1"),
        ("gradient_checkpointing", "selective", "selective"),
        ("gradient_checkpointing", "true", True),
        ("model", "7", "7"),
        ("lora_targets", "q_proj;v_proj", ("q_proj", "v_proj")),
        ("peak_memory_per_rank_mib", "1;2.5", (1.0, 2.5)),
        ("peak_memory_per_rank_mib", "1;x", (1.0, "x")),
    ],
)
def test_a_cell_is_read_by_the_type_of_its_column(column: str, text: str, value: Any) -> None:
    """Text of another type stays text, so that the record refuses it by name."""
    found = parse_cell(column, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (True, "true"), (False, "false"), (3, "3"), (0.1, "0.1"), (1e-7, "1e-07"), ("a b", "a b"),
        ((), ""), (("q", "v"), "q;v"), ((1.0, 2.5), "1.0;2.5"),
    ],
)  # fmt: skip
def test_a_value_is_written_so_that_it_is_read_again(value: Any, text: str) -> None:
    """All digits of a number, and truth in small letters."""
    assert format_cell(value) == text


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("step_time_s", 0.1 + 0.2), ("seq_len", 10**18), ("censored", False), ("lora_targets", ("a", "b")),
        ("peak_memory_per_rank_mib", (1.0, 1 / 3)), ("notes", None), ("versions", ()),
    ],
)  # fmt: skip
def test_both_ways_end_where_they_began(column: str, value: Any) -> None:
    """To the last bit."""
    assert parse_cell(column, format_cell(value)) == value
