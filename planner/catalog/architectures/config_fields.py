"""Typed, checked access to the fields of an untrusted ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import InputFileError

# No published model comes near these; larger numbers are mistakes or attacks,
# and products of them stop being exact.
_MAX_SIZE = 2**31 - 1
# The deepest that was published, DeepNet, has 1,000 (arXiv 2203.00555); each takes a millisecond.
MAX_LAYERS = 2_000


class ConfigFields:
    """A parsed config, read field by field.  Every complaint names the file and the field.

    ``where`` is the file (or catalog entry) for messages.
    """

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where = data, where

    def fail(self, problem: str) -> InputFileError:
        """The error to raise for ``problem`` in this config."""
        return InputFileError(self.where, problem)

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self.data.get(name) is not None

    def integer(self, *names: str, default: int | None = None) -> int:
        """The first present of ``names`` as a positive integer; ``default`` when none is present."""
        for name in names:
            if self.has(name):
                return self._positive(name, self.data[name])
        if default is None:
            raise self.fail(f"field '{names[0]}' is missing")
        return default

    def optional_integer(self, name: str) -> int | None:
        """A positive integer or ``None`` when absent or null."""
        return self._positive(name, self.data[name]) if self.has(name) else None

    def count(self, name: str, default: int = 0) -> int:
        """A count that may be zero."""
        value = self.data.get(name)
        if value is None or value == 0:
            return default if value is None else 0
        return self._positive(name, value)

    def layers(self, *names: str, default: int | None = None) -> int:
        """The number of layers, bounded because lists of that length are built from it."""
        value = self.integer(*names, default=default)
        if value > MAX_LAYERS:
            raise self.fail(f"field '{names[0]}' is {value}, above the limit of {MAX_LAYERS}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(f"field '{name}' must be true or false, not {_shown(value)}")
        return value

    def is_positive(self, name: str, default: float) -> bool:
        """Whether a probability is above zero."""
        value = self.data.get(name, default)
        if value is None:
            return default > 0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.fail(f"field '{name}' must be a number from 0 to 1, not {_shown(value)}")
        return value > 0

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.fail(f"field '{name}' must be text, not {_shown(value)}")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of non-negative integers; empty when absent."""
        value = self.data.get(name)
        if value is None:
            return ()
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > MAX_LAYERS:
            raise self.fail(f"field '{name}' must be a list of at most {MAX_LAYERS} integers")
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value):
            raise self.fail(f"field '{name}' must hold non-negative integers")
        return tuple(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        value = self.data.get(name)
        if value is None:
            return ()
        is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) <= MAX_LAYERS
        if not is_list or not all(isinstance(item, str) for item in value):
            raise self.fail(f"field '{name}' must be a list of at most {MAX_LAYERS} texts")
        return tuple(value)

    def section(self, name: str) -> ConfigFields:
        """A nested object, read with the same care."""
        value = self.data.get(name)
        if not isinstance(value, Mapping):
            raise self.fail(f"field '{name}' must be an object")
        return ConfigFields(value, f"{self.where}: {name}")

    def optional_section(self, name: str) -> ConfigFields:
        """A nested object; one without fields where it is absent or null."""
        return self.section(name) if self.has(name) else ConfigFields({}, f"{self.where}: {name}")

    def _positive(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_SIZE:
            raise self.fail(
                f"field '{name}' must be a whole number from 1 to {_MAX_SIZE}, not {_shown(value)}"
            )
        return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
