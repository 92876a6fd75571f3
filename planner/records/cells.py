"""One cell of CSV <-> one value of a record.  A blank cell is ``None`` (an empty list for a list column)."""

from __future__ import annotations

import math
import re
import types
from functools import cache
from typing import Any, Union, get_args, get_origin

from planner.records.record_schema import LIST_COLUMNS, column_types

SEPARATOR = ";"
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,4})?")
_BOOLS = {"true": True, "false": False}


def parse_cell(column: str, text: str) -> Any:
    """Value of a cell.  Text that is not of the column's type is returned as it is:
    the border model then refuses it by name.
    """
    if text == "":
        return () if column in LIST_COLUMNS else None
    members = _members(column)
    if column in LIST_COLUMNS:
        return tuple(_parse_one(part, members) for part in text.split(SEPARATOR))
    return _parse_one(text, members)


def format_cell(value: Any) -> str:
    """Text of a value such that :func:`parse_cell` gives the value back."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return SEPARATOR.join(format_cell(item) for item in value)
    return repr(value) if isinstance(value, float) else str(value)


def _parse_one(text: str, members: frozenset[Any]) -> Any:
    if bool in members and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if int in members and _INTEGER.fullmatch(text):
        return int(text)
    if float in members and _NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


@cache
def _members(column: str) -> frozenset[Any]:
    """Plain types that the values of a column (or the items of a list column) may have."""
    annotation = column_types()[column]
    origin = get_origin(annotation)
    return frozenset(get_args(annotation) if origin in (types.UnionType, Union, tuple) else (annotation,))
