"""Comments of a shell text, which quotes hide: ``--a 'b #c' --d``.

Source: POSIX.1-2017 2.2 (quoting) and 2.3 (a comment begins where a word would).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_PART = re.compile(
    r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?P<quote>['"]).*|(?<![^\s;&|()<>])(?P<comment>\#).*""", re.DOTALL
)


def uncommented(line: str, quote: str = "") -> tuple[str, str]:
    """A line without its comment, and the quote that is open behind it; ``quote``: the one before it."""
    text = quote + line
    for part in _PART.finditer(text):
        if part["comment"]:
            return text[len(quote) : part.start()], ""
        if part["quote"]:
            return line, part["quote"]
    return line, ""


def closes_quotes(lines: Iterable[str]) -> bool:
    """Whether no quote is open behind lines of a shell."""
    quote = ""
    for line in lines:
        quote = uncommented(line, quote)[1]
    return not quote
