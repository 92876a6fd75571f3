"""What both programs print: text from outside without control characters,
in the width and the encoding of the stream.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import textwrap
from typing import TextIO

PLAIN_WIDTH = 80
"""Columns of text that goes to no terminal and is told no width."""
LEAST_WIDTH, MOST_WIDTH = 40, 1000
_LINES_ONLY = ("dumb", "unknown")
_MAX_SENTENCE_CHARS = 400
_WORD = re.compile(r"(\S{60})\S{20,}")
_PASSWORD = re.compile(r"(://)[^\s/]+@")


def printable(text: str) -> str:
    """``text`` on one line, with control characters and lone surrogates replaced by ``?``:
    names and paths come from outside.
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def printable_lines(text: str) -> str:
    """``text`` with its lines kept, and each of them :func:`printable`."""
    return "\n".join(map(printable, text.split("\n")))


def in_short(text: str) -> str:
    """``text`` in one line of at most 400 characters: parsers repeat what was typed, however long that is."""
    return textwrap.shorten(" ".join(_WORD.sub(r"\1...", word) for word in text.split()), _MAX_SENTENCE_CHARS)


def without_passwords(text: str) -> str:
    """``text`` in which the credentials of addresses (``https://user:password@host``) are left out,
    as other programs may not.
    """
    return _PASSWORD.sub(r"\1***@", text)


def width_of(stream: TextIO) -> int:
    """``COLUMNS``, or the terminal's own columns, or 80; what is no width at all is passed over."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and 0 < int(given) <= MOST_WIDTH:
        return max(int(given), LEAST_WIDTH)
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        columns = 0
    return min(max(columns, LEAST_WIDTH), MOST_WIDTH) if columns else PLAIN_WIDTH


def moves_the_cursor(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that can draw over what it has drawn, as bars do."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in _LINES_ONLY


def prepare_streams() -> None:
    """Standard output and error take any text: nothing where they are closed,
    escapes for what their encoding does not have.
    """
    # Closed by the caller (>&-), who wants the exit code alone.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def said_of_output(error: Exception) -> str:
    """One sentence where ``error`` is a standard output that takes nothing, as on a full disk; else empty."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO)
    if isinstance(error, OSError) and error.errno in full:
        return f"the answer cannot be written: {error.strerror}"
    return ""


def close_output() -> None:
    """Nothing more goes to a standard output that takes nothing:
    Python would complain once more when it flushes at exit.
    """
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
