"""Keys to set in a file or to take out of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from planner.errors import UsageError


class Removed(Enum):
    """Stands for a key that is taken out."""

    REMOVED = "removed"


REMOVED: Final = Removed.REMOVED
# Place of a key below the top of its file -> its new value.
Settings = Mapping[tuple[str, ...], Any]


@dataclass(frozen=True, slots=True)
class Edit:
    """One key of one file with its new value, ``REMOVED`` to take it out; ``place`` is the way down to it."""

    file: Path
    place: tuple[str, ...]
    value: Any

    @property
    def key(self) -> str:
        """The key as people say it: ``zero_optimization.stage``."""
        return ".".join(self.place)

    @property
    def line(self) -> str:
        """The change as a line of the file, in the manner of its format; of a whole table what matters, and dots for the rest."""
        if self.value is REMOVED:
            return f"{self.key}: take it out"
        if self.file.suffix == ".toml":
            return f"{self.key} = {json.dumps(self.value)}"
        if self.file.suffix == ".json":
            return f'"{self.key}": {json.dumps(self.value)}'
        return f"{self.key}: {_flow(self.value)}"


def applied(table: Mapping[str, Any], edits: Iterable[Edit]) -> dict[str, Any]:
    """A copy of ``table`` with the edits in it.

    Raises:
        UsageError: an edit goes below a key that holds no table.
    """
    changed = copy.deepcopy(dict(table))
    for edit in edits:
        inner: Any = changed
        for name in edit.place[:-1]:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise UsageError(f"{edit.file}:{edit.key} cannot be set: '{name}' is no table")
        if edit.value is REMOVED:
            inner.pop(edit.place[-1], None)
        else:
            inner[edit.place[-1]] = copy.deepcopy(edit.value)
    return changed


def _flow(value: Any) -> str:
    """A value in one line of YAML; keys of a table that only leave something to the trainer are dots."""
    if isinstance(value, dict):
        told = {key: inner for key, inner in value.items() if not _left_open(inner)}
        dots = ["..."] if len(told) < len(value) else []
        return "{" + ", ".join([*(f"{key}: {_flow(inner)}" for key, inner in told.items()), *dots]) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return value if isinstance(value, str) else json.dumps(value)


def _left_open(value: Any) -> bool:
    return value == "auto" or (isinstance(value, dict) and all(map(_left_open, value.values())))
