"""Lines of a given width in which no flag is parted from its value and no name is broken that fits on a line."""

from __future__ import annotations

import re
import textwrap

_GLUE = "\u00a0"
# "--seq 1024": the value belongs to the flag.
_FLAG = re.compile(r"(--[a-z][a-z0-9-]*) (?=[\w\"'])")


def wrap(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` characters; only a word longer than a line is broken."""
    kept = _FLAG.sub(rf"\1{_GLUE}", text)
    lines = textwrap.wrap(kept, max(width, 1), break_on_hyphens=False) or [""]
    return [line.replace(_GLUE, " ") for line in lines]


def first_line(text: str, width: int) -> str:
    """The first line of ``text``, with three dots where more would follow."""
    lines = wrap(text, width)
    return lines[0] if len(lines) == 1 else f"{wrap(text, width - 4)[0].rstrip(',;:')} ..."
