"""The keys of one table, read one by one: what nobody asked for is left over and gets reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from planner.configs.document import Document
from planner.errors import InputFileError, NotModelledError, show

# What a key may hold that switches something off.
_PLAIN = (bool, int, float, str, type(None))
_OFF = (None, False, 0, "", "none", "None", "no", "false")


class Keys:
    """A table of a file with the names of its keys as people find them there (``zero_optimization.stage``).

    A key that is ``null`` counts as not given, as the tools read it with few exceptions.
    """

    def __init__(self, path: Path, table: Mapping[str, Any], prefix: str = "") -> None:
        self.path, self._table, self._prefix = path, table, prefix
        self._read: set[str] = set()
        self._parts: list[Keys] = []

    @classmethod
    def of(cls, document: Document) -> Keys:
        """All keys of a file."""
        return cls(document.path, document.table)

    def has(self, name: str) -> bool:
        """Whether the key is there and not ``null``."""
        return self._table.get(name) is not None

    def holds(self, name: str) -> bool:
        """Whether the key is there, be it ``null``."""
        return name in self._table

    def get(self, name: str) -> Any:
        """The value of a key, ``None`` where it is not given; it counts as read."""
        self._read.add(name)
        return self._table.get(name)

    def where(self, name: str) -> str:
        """Place of a key: ``file:key``."""
        return f"{self.path}:{self._prefix}{name}"

    def flag(self, name: str) -> bool | None:
        """A key that must be true or false, ``None`` where it is not given.

        Raises:
            InputFileError: something else.
        """
        value = self.get(name)
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(name, "true or false", value)

    def text(self, name: str) -> str | None:
        """A key that must be text.

        Raises:
            InputFileError: something else.
        """
        value = self.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(name, "text", value)

    def count(self, name: str) -> int | None:
        """A key that must be a whole number above zero.

        Raises:
            InputFileError: something else.
        """
        value = self.get(name)
        number = int(value) if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20 else value
        if number is None or (isinstance(number, int) and not isinstance(number, bool) and number > 0):
            return number
        raise self.wrong(name, "a whole number above zero", value)

    def names(self, name: str) -> tuple[str, ...]:
        """A key that must be a list of names, or one text with commas; empty where it is not given.

        Raises:
            InputFileError: something else.
        """
        value = self.get(name)
        parts = [] if value is None else value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise self.wrong(name, "a list of names", value)
        return tuple(part.strip() for part in parts if part.strip())

    def part(self, name: str) -> Keys | None:
        """The table below a key, ``None`` where there is none; what is not read of it is left over as well.

        Raises:
            InputFileError: something else than a table.
        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise self.wrong(name, "a table", value)
        part = Keys(self.path, value, f"{self._prefix}{name}.")
        self._parts.append(part)
        return part

    def wrong(self, name: str, wanted: str, value: object) -> InputFileError:
        """The error about a value that cannot be used."""
        return InputFileError(self.path, f"key '{self._prefix}{name}' must be {wanted}, but it is {show(value)}")

    def not_modelled(self, name: str, why: str) -> NotModelledError:
        """The error about a key whose effect no formula covers."""
        return NotModelledError(f"{self.where(name)}: {why}")

    def refuse_switched_on(self, reasons: Mapping[str, str]) -> None:
        """Read keys that change memory or time in a way that no formula covers; off, they say nothing.

        Raises:
            NotModelledError: one of them is on; says why it is not modelled.
        """
        for name, why in reasons.items():
            value = self.get(name)
            if not (value in _OFF if isinstance(value, _PLAIN) else not value):
                raise self.not_modelled(name, why)

    def refuse_above_one(self, reasons: Mapping[str, str]) -> None:
        """Read degrees that are modelled at 1 only.

        Raises:
            InputFileError: not a whole number.
            NotModelledError: one of them is above 1.
        """
        for name, what in reasons.items():
            degree = self.get(name)
            if degree is None:
                continue
            if isinstance(degree, bool) or not isinstance(degree, int):
                raise self.wrong(name, "a whole number", degree)
            if degree > 1:
                raise self.not_modelled(name, f"{what} of {degree} is not modelled; only 1 is")

    def skip(self, names: Iterable[str]) -> None:
        """Count keys as read that change neither memory nor the time of a step."""
        self._read.update(names)

    def left_over_here(self) -> tuple[str, ...]:
        """Keys of this very table that nobody read."""
        return tuple(name for name in self._table if name not in self._read)

    def left_over(self) -> tuple[str, ...]:
        """Keys that nobody read, with those of the tables below, in the order of the file."""
        own = tuple(f"{self._prefix}{show(name)}" for name in self.left_over_here())
        return (*own, *(name for part in self._parts for name in part.left_over()))
