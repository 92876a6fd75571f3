"""Where a resolved value comes from: written for people, and written and read as text here alone.

An origin is ``cli``, ``file:line``, ``file:key``, ``default:<stack>``, ``default of <tool>``, ``catalog``,
``assumed``, ``derived``, ``data`` (the lengths of a data set), ``record:<id>`` or the place of a Python
object.
"""

from __future__ import annotations

ASSUMED = "assumed"
CATALOG = "catalog"
DATA = "data"
_STACK = "default:"
_TOOL = "default of "


def stack_default(stack_id: str) -> str:
    """Origin of what a software stack does where nothing is said."""
    return f"{_STACK}{stack_id}"


def tool_default(tool: str) -> str:
    """Origin of what the tool of a config file does where the file is silent."""
    return f"{_TOOL}{tool}"


def stack_of(origin: str) -> str | None:
    """The stack whose default this is; ``None`` of another origin."""
    return origin.removeprefix(_STACK) if origin.startswith(_STACK) else None


def is_assumed(origin: str) -> bool:
    """Whether nobody said the value: it is our assumption, or what the stack does by itself."""
    return origin == ASSUMED or origin.startswith(_STACK)


def is_tool_default(origin: str) -> bool:
    """Whether the value is what the tool of a config file does where the file is silent."""
    return origin.startswith(_TOOL)
