"""JSON, TOML and YAML of untrusted origin: bounded before a parser could fail,
and wrong by place and kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from planner.errors import InputFileError
from planner.files.malformed import MAX_DEPTH
from planner.files.structured import json_value, toml_table, yaml_value

PARSERS: dict[str, Callable[[str], Any]] = {
    "json": lambda text: json_value("f", text),
    "toml": lambda text: toml_table("f", text),
    "yaml": lambda text: yaml_value("f", text)[0],
}


def nested(form: str, depth: int) -> str:
    """Lists in each other, ``depth`` levels with what holds them."""
    lists = "[" * (depth - 1) + "]" * (depth - 1)
    return {"json": f'{{"a": {lists}}}', "toml": f"a = {lists}[0]"[: -len("[0]")], "yaml": f"a: {lists}"}[
        form
    ]


@pytest.mark.parametrize("form", PARSERS)
def test_depth_is_bounded_alike(form: str) -> None:
    """As deep as the bound is read; a hundred times as deep is refused,
    as is any depth in brackets of a string not counted.
    """
    PARSERS[form](nested(form, MAX_DEPTH - 1))
    with pytest.raises(InputFileError, match="nested too deeply"):
        PARSERS[form](nested(form, 100 * MAX_DEPTH))
    brackets = "[" * 1000
    text = {
        "json": f'{{"a": "\\"{brackets}"}}',
        "toml": f"a = '{brackets}' # {brackets}\n",
        "yaml": f"a: '{brackets}'",
    }[form]
    assert PARSERS[form](text)["a"].endswith(brackets)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("toml", "a" + ".a" * 100_000 + " = 1"),
        ("toml", "[a" + ' . "a"' * 100_000 + "]"),
        ("json", '{"a": "' + '\\"' * 100_000),
        ("toml", "a = '''" + "''" * 100_000),
        ("yaml", "a: " + "1:" * 100_000 + "1"),
        ("yaml", "[" * 100_000),
    ],
)
def test_no_text_takes_the_square_of_its_length(form: str, text: str) -> None:
    """Keys of many parts, strings without an end, numbers in base 60, brackets:
    a fraction of a second each.
    """
    start = time.process_time()
    with pytest.raises(InputFileError):
        PARSERS[form](text)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("form", "text", "sentence"),
    [
        (
            "json",
            '{"a": 1,\n "b": {"c": "\\"c\\": 1",\n "\\u0063": 2}}',
            "f:3: not valid JSON: a name is given twice",
        ),
        ("json", '{"a": NaN}', "'NaN' is not a number"),
        ("json", '{"a": -1e999}', "a number too large"),
        ("json", '{"a": ' + "9" * 301 + "}", "a number of more than 300 digits"),
        ("json", '{"a": 1\n"b"}', "f:2: not valid JSON"),
        ("json", '{"a" 1}', "f:1: not valid JSON: Expecting ':' delimiter"),
        ("json", '{"a": "\\x"}', "f:1: not valid JSON: Invalid \\escape"),
        ("json", " \n", "f: not valid JSON: empty"),
        ("toml", "a = 1\nb = 2\na = 3\n", "f:3: not valid TOML: a key or a table is given twice"),
        ("toml", "[a.b]\n[a.b]\n", "f:2: not valid TOML: a key or a table is given twice"),
        ("toml", "a = " + "9" * 5000, "a number of more than 300 digits"),
        ("toml", "a = 2026-02-31", "f:1: not valid TOML"),
        ("yaml", "a: 1\nb: " + "9" * 301, "f:2: not valid YAML: a number of more than 300 digits"),
        ("yaml", "a: 1\nb: 2026-02-31", "f:2: not valid YAML: a date or a number that does not exist"),
        ("yaml", "a: !key value", "f:1: not valid YAML: could not determine a constructor for the tag (...)"),
        ("yaml", "a: [1, b", "not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("yaml", "a: 1\n\tb: 2", "f:2: not valid YAML: a tab where YAML takes spaces"),
        ("yaml", "a: 1\nb: \x07", "f:2: not valid YAML: a character that no text has"),
        ("yaml", "a: *anchor", "f:1: not valid YAML: found undefined alias"),
        ("yaml", "a: &x {b: 1}\nc: *x", "f:2: aliases (*name) of lists and tables are not read"),
    ],
)
def test_what_is_wrong_is_said_by_place_and_kind(form: str, text: str, sentence: str) -> None:
    """With the line where the parser knows it."""
    with pytest.raises(InputFileError) as caught:
        PARSERS[form](text)
    assert sentence in str(caught.value)


def test_numbers_of_a_usual_size_are_read() -> None:
    """Hundreds of digits are, and many numbers beside each other."""
    assert json_value("f", f"[{'9' * 300}]") == [int("9" * 300)]
    assert toml_table("f", f"a = [{', '.join(['0.5'] * 1000)}]")["a"] == [0.5] * 1000
