"""Where a resolved value comes from: text for people.

An origin is ``cli``, ``file:line``, ``file:key``, ``default:<stack>``, ``default of <tool>``, ``catalog``,
``assumed``, ``derived``, ``data`` (the lengths of a data set), ``record:<id>`` or the place of a Python
object.  Code asks for the kind of a default by its type, never by its words: a file may have any name.
"""

from __future__ import annotations

ASSUMED = "assumed"
CATALOG = "catalog"
DATA = "data"
_CONFIG_SUFFIXES = (".yaml", ".yml", ".json")


class StackDefault(str):
    """Origin of what a software stack does where nothing is given; ``stack``: its id."""

    stack: str


class ToolDefault(str):
    """Origin of what the tool of a config file does where the file is silent."""

    __slots__ = ()


def stack_default(stack_id: str) -> StackDefault:
    """``default:<stack>``."""
    origin = StackDefault(f"default:{stack_id}")
    origin.stack = stack_id
    return origin


def tool_default(tool: str) -> ToolDefault:
    """``default of <tool>``."""
    return ToolDefault(f"default of {tool}")


def stack_of(origin: str) -> str | None:
    """The stack whose default this is; ``None`` of another origin."""
    return origin.stack if isinstance(origin, StackDefault) else None


def is_assumed(origin: str) -> bool:
    """Whether nobody gave the value: it is our assumption, or what the stack does by itself."""
    return origin == ASSUMED or isinstance(origin, StackDefault)


def is_tool_default(origin: str) -> bool:
    """Whether the value is what the tool of a config file does where the file is silent."""
    return isinstance(origin, ToolDefault)


def split_place(origin: str) -> tuple[str, str]:
    """File, and line or key in it, of ``file:line`` and ``file:key``; other origins have no place."""
    file, _, place = origin.rpartition(":")
    if isinstance(origin, StackDefault | ToolDefault) or not file:
        return origin, ""
    return (file, place) if place.isdigit() or file.endswith(_CONFIG_SUFFIXES) else (origin, "")
