"""Keys to set in a file or to take out of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from planner.configs.launchers.launch import LAUNCH_LINE
from planner.errors import UsageError


class Removed(Enum):
    """Stands for a key that is taken out."""

    REMOVED = "removed"


REMOVED: Final = Removed.REMOVED
_LEFT_TO_TRAINER = "auto"
# accelerate 1.15.0 commands/launch.py.
_ENGINES = {"DEEPSPEED": "--use_deepspeed", "FSDP": "--use_fsdp"}
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
    def removes(self) -> bool:
        """Whether it takes the key out."""
        return self.value is REMOVED

    @property
    def is_of_launch_line(self) -> bool:
        """Whether the file stands for the options of a launcher."""
        return self.file.name.endswith(LAUNCH_LINE)

    @property
    def options(self) -> tuple[str, ...]:
        """The change as options of ``accelerate launch``, which are named as the keys of its file are."""
        found = []
        for key, value in _leaves(self.place[-1], self.value):
            name = key.rpartition(".")[2]
            if value is REMOVED:
                found.append(f"without --{name}")
            elif name == "distributed_type":
                found.append(_ENGINES.get(value, f"--{value.lower()}"))
            else:
                found.append(f"--{name} {_plain(value)}")
        return tuple(found)

    @property
    def lines(self) -> tuple[str, ...]:
        """The change as lines of the file, in the manner of its format; a table as its keys,
        less those left to the trainer.
        """
        if self.removes:
            return (f"{self.key}: take it out",)
        if self.file.suffix == ".toml":
            return (f"{self.key} = {json.dumps(self.value)}",)
        if self.file.suffix == ".json":
            return (f'"{self.key}": {json.dumps(self.value)}',)
        told = [
            f"{key}: {_plain(value)}"
            for key, value in _leaves(self.key, self.value)
            if value != _LEFT_TO_TRAINER
        ]
        left = sum(value == _LEFT_TO_TRAINER for _, value in _leaves(self.key, self.value))
        return (*told, *([f"and {left} more keys of {self.key}: {_LEFT_TO_TRAINER}"] if left else []))


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
        if edit.removes:
            inner.pop(edit.place[-1], None)
        else:
            inner[edit.place[-1]] = copy.deepcopy(edit.value)
    return changed


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Values that are no tables, by their dotted keys."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key, value


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return value if isinstance(value, str) else json.dumps(value)
