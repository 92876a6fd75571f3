"""Lines of a given width in which flags keep their values, numbers their units,
and names that fit on a line are whole.
"""

from __future__ import annotations

import re
import textwrap

_GLUE = "\u00a0"
# "--seq 1024" and "> 99 %": a value belongs to its flag, a unit to its number.
_TOGETHER = re.compile(
    r"(--[a-z][a-z0-9-]*) (?=[\w\"'])|([<>]) (?=\d)|(?<=\d)( )(?=(?:%|[KMGT]iB|USD|ms|s|min|h)(?!\w))"
)


def wrap(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` characters; only a word longer than a line is broken."""
    kept = _TOGETHER.sub(lambda found: found.group().replace(" ", _GLUE), text)
    lines = textwrap.wrap(kept, max(width, 1), break_on_hyphens=False) or [""]
    return [line.replace(_GLUE, " ") for line in lines]


def first_line(text: str, width: int) -> str:
    """The first line of ``text``, with three dots where more would follow."""
    lines = wrap(text, width)
    return lines[0] if len(lines) == 1 else f"{wrap(text, width - 4)[0].rstrip(',;:')} ..."
