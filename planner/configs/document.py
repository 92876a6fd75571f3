"""YAML and JSON files of untrusted origin as one table: safe loader, bounded, no aliases."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.configs.text_file import read_text
from planner.errors import InputFileError, show
from planner.units import MIB

if TYPE_CHECKING:
    import yaml

# A job's file has a few hundred lines; the pure Python parser takes seconds for a megabyte.
MAX_DOCUMENT_BYTES = MIB // 4
_TOO_DEEP = "nested too deeply"


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds: one table with text as keys.

    ``twice``: keys of a YAML file that are given again, with the line of the last, whose value is in the table.
    """

    path: Path
    table: dict[str, Any]
    twice: tuple[tuple[str, int], ...] = ()


def read_document(path: Path) -> Document:
    """The table of a YAML or JSON file (by its suffix; what has neither is YAML, of which JSON is nearly a part).

    Raises:
        InputFileError: unreadable, too large, not YAML or JSON, empty, not a table, with aliases; JSON with a key given twice,
            which DeepSpeed refuses too.
    """
    text = read_text(path, MAX_DOCUMENT_BYTES)
    twice: dict[str, int] = {}
    try:
        value = _from_json(path, text) if path.suffix == ".json" else _from_yaml(path, text, twice)
    except RecursionError:
        raise InputFileError(path, _TOO_DEEP) from None
    if value is None:
        raise InputFileError(path, "empty: it says nothing about a job")
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else show(value)
        raise InputFileError(path, f"must be a table of keys and values, but at its top is {kind}")
    for key in value:
        if not isinstance(key, str):
            raise InputFileError(path, f"keys must be text, but one is {show(key)}")
    return Document(path, value, tuple(twice.items()))


def _from_json(path: Path, text: str) -> Any:
    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise InputFileError(path, f"key '{show(key)}' is given twice")
            found[key] = value
        return found

    if not text.strip():
        return None
    try:
        return json.loads(text, object_pairs_hook=table)
    except json.JSONDecodeError as error:
        raise InputFileError(path, f"not valid JSON: {error.msg}", error.lineno) from None
    except ValueError as error:
        # An integer of thousands of digits.
        raise InputFileError(path, f"not valid JSON: {show(str(error))}") from None


def _from_yaml(path: Path, text: str, twice: dict[str, int]) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Safe YAML without aliases, which can blow up.  Of a key given twice the last wins, as in ``yaml.safe_load``."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise InputFileError(path, "aliases (*name) are not read: write the value out", self.line + 1)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise InputFileError(
                        path, "a key is a list or a table, as where a placeholder {{ name }} is not filled in", line
                    )
                if key.value in seen:
                    twice[key.value] = line
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        # The loader is a SafeLoader; `safe_load` itself takes no loader.
        return yaml.load(text, Loader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise InputFileError(
            path, f"not valid YAML: {show(error.problem or 'unknown')}", mark.line + 1 if mark else None
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: a date that does not exist, an integer of thousands of digits.
        raise InputFileError(path, f"not valid YAML: {show(str(error))}") from None
