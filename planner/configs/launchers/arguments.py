"""Arguments of a script by their names, as a command line writes them.

Source: transformers 5.23.0 hf_argparser.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from planner.configs.launchers.named_files import named_file
from planner.configs.yaml_or_json import read_document
from planner.errors import UsageError, show

_DATA_SUFFIXES = (".yaml", ".yml", ".json")
_FALSE = "no_"
SEVERAL = re.compile(r"\$[@*]|\$\{[@*]\}|\$\{\w+\[[@*]\]\}")
"""Words that may be several, or none."""
BARE_VARIABLE = re.compile(rf"\$\w+|\$\{{\w+\}}|{SEVERAL.pattern}")
"""These, and one that may be several behind a value."""
_KEPT_NO = frozenset({"no_cuda"})


def named_values(path: Path, words: Sequence[str]) -> dict[str, Any]:
    """A script's arguments by name, over those of a file that is given with them.

    A switch is true, one that begins with ``no_`` false, and several values are a list (hf_argparser.py).
    """
    base: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for name, values in _groups(path, words):
        if name in ("", "config"):
            for file in values:
                base |= read_document(named_file(path, file)).table
        elif not values and name.startswith(_FALSE) and name not in _KEPT_NO:
            found[name.removeprefix(_FALSE)] = False
        else:
            found[name] = (
                True
                if not values
                else scalar(values[0])
                if len(values) == 1
                else [scalar(each) for each in values]
            )
    return base | found


def _groups(path: Path, words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option with its values; words before the first are files of arguments."""
    name, values = "", list[str]()
    for word in words:
        if word.startswith("--") and len(word) > 2:
            if name or values:
                yield name, values
            text, mark, value = word[2:].partition("=")
            name, values = text.replace("-", "_"), [value] if mark else []
        elif _may_be_several(word, values) or (not name and not word.endswith(_DATA_SUFFIXES)):
            open_ = "may hold several arguments, or name a file: check that, or"
            what = open_ if word.startswith("$") else "is no argument:"
            raise UsageError(f"{path}: '{show(word)}' {what} write out --NAME VALUE")
        else:
            values.append(word)
    if name or values:
        yield name, values


def _may_be_several(word: str, before: Sequence[str]) -> bool:
    """Whether a word may hold arguments of its own; a variable alone behind an option is its value."""
    return bool((BARE_VARIABLE if before else SEVERAL).fullmatch(word))


def scalar(value: Any) -> Any:
    """Text as the number, table or text that it is."""
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"[+-]?\d{1,18}", value):
        return int(value)
    if value.startswith("{"):
        try:
            table = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return table if isinstance(table, dict) else value
    return value
