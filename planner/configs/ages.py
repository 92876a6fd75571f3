"""How old the software of a file is, where its keys tell it: an old file is judged by an old stack, never by the newest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.configs.reading import Reading


@dataclass(frozen=True, slots=True)
class Age:
    """An older age of a tool: its title with versions, and the stack of then."""

    title: str
    stack: str


def take_age(reading: Reading, age: Age, origins: Iterable[str]) -> bool:
    """Judge the file by the stack of an older age, where keys of that age are in it; say so once.

    Args:
        reading: what was read so far; its stack and its tool are replaced.
        age: the age that the keys tell.
        origins: places of these keys.

    Returns:
        Whether there was such a key.
    """
    places = tuple(origins)
    if not places:
        return False
    newest = reading.said.pop("stack", None)
    reading.say("stack", age.stack, places[0], f"a key of {age.title}")
    way_out = f"; --stack {newest.value} judges it as of today" if newest is not None else ""
    reading.remark(places[0], f"a key that newer versions renamed, dropped or no longer write: judged as {age.title}{way_out}")
    reading.tool = age.title
    return True
