"""What is known of the keys of a tool, as data: ``data/keys/<tool>.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from planner.catalog.location import data_dir
from planner.errors import InputFileError
from planner.files.structured import read_toml
from planner.words import words


def names_in(file: str, table: str) -> tuple[str, ...]:
    """The words of one table, in their order.

    Raises:
        InputFileError: the file has no such text.
    """
    text = _tables(file).get(table)
    if not isinstance(text, str):
        raise InputFileError(_path(file), f"'{table}' must be text: names with blanks between them")
    return words(text)


def texts_in(file: str, table: str) -> Mapping[str, str]:
    """The text that stands beside each name of one table, in their order.

    Raises:
        InputFileError: the file has no such table of texts.
    """
    texts = _tables(file).get(table)
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise InputFileError(_path(file), f"'{table}' must be a table of texts")
    return texts


def _path(file: str) -> Path:
    return data_dir() / "keys" / file


@cache
def _tables(file: str) -> dict[str, Any]:
    return read_toml(_path(file))
