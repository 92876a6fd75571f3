"""The book in which every resolved value is entered with its origin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from planner.domain.origin import ASSUMED, stack_of
from planner.domain.scenario import Assumption
from planner.intake.given.fields import REQUEST_FIELDS
from planner.intake.given.request import ScenarioRequest
from planner.units import format_bytes

ValueT = TypeVar("ValueT")


class Ledger:
    """Answers "what is the value of this field?" and remembers the answer and its origin,
    one entry per field.
    """

    def __init__(self, request: ScenarioRequest, entries: Iterable[Assumption] = ()) -> None:
        self.request = request
        self._entries = {entry.name: entry for entry in entries}

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Every entry, in the order in which help lists the fields."""
        order = {name: position for position, name in enumerate(REQUEST_FIELDS)}
        return tuple(sorted(self._entries.values(), key=lambda entry: order.get(entry.name, len(order))))

    def is_given(self, *names: str) -> bool:
        """Whether the user (or the record) says something about one of these fields."""
        return any(name in self.request.values for name in names)

    def enter(self, name: str, value: object, origin: str, note: str = "") -> None:
        """Enter a value that was worked out elsewhere."""
        self._entries[name] = Assumption(name, _text(name, value), origin, note)

    def reword(self, name: str, value: object, note: str) -> None:
        """What an entry stands for, with its origin."""
        self.enter(name, value, self._entries[name].origin, note)

    def remark(self, name: str, note: str) -> None:
        """Say more about an entry, once."""
        entry = self._entries[name]
        if note in entry.note.split("; "):
            return
        self._entries[name] = replace(entry, note=f"{entry.note}; {note}" if entry.note else note)

    def choose(self, name: str, default: ValueT, origin: str, note: str = "") -> ValueT:
        """What was given about the field, else ``default`` with its ``origin``."""
        given = self.request.values.get(name)
        if given is not None:
            self.enter(name, given.value, given.origin, given.note)
            value: ValueT = given.value
            return value
        if self.request.record_id is not None and (stack := stack_of(origin)) is not None:
            # A source that is silent did not choose the default: that it used it is our assumption.
            silent = f"the source does not say; {stack} does this"
            origin, note = ASSUMED, f"{silent}; {note}" if note else silent
        self.enter(name, default, origin, note)
        return default


def _text(name: str, value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ";".join(map(str, value)) or "none"
    field = REQUEST_FIELDS.get(name)
    if isinstance(value, int) and field is not None and field.kind == "size":
        return format_bytes(value)
    return str(value)
