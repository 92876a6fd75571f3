"""Comments of a shell text, which quotes hide; text that it reads into a variable, as the assignment that
sets the same value; and text that is no shell's.

Source: POSIX.1-2017 2.2 (quoting) and 2.3 (a comment begins where a word would); bash 5.2: ``read -d ''``
takes the whole of a here-document, whose delimiter stands without quotes, so that a line behind a backslash
goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_READ = re.compile(
    r"^(?P<before>[ \t]*)(?:IFS=(?:''|\"\")?[ \t]+)?read[ \t]+(?:-r[ \t]+)?-(?:r?d)[ \t]*(?:''|\"\")[ \t]+"
    r"(?:-r[ \t]+)?(?P<name>[A-Za-z_]\w*)[ \t]*<<-?[ \t]*(?P<end>[A-Za-z_]\w*)[ \t]*"
    r"(?:\|\|[ \t]*(?:true|:))?[ \t]*$"
)
_OPENS = re.compile(r"(?<![<(])<<-?[ \t]*[\\'\"]?(?P<end>[A-Za-z_]\w*)")
# What prints a text, or runs it as a program of another language.
_NO_SHELL = re.compile(r"^[ \t]*(?:cat[^|>]*$|python)")
# What means the same between double quotes.
_PLAIN = re.compile(r"[^\"'`\\]*")

_QUOTED = re.compile(
    r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?P<quote>['"]).*|(?<![^\s;&|()<>])(?P<comment>\#).*""", re.DOTALL
)


def with_documents(text: str) -> str:
    """``text`` with ``read`` of a here-document as an assignment, but for one with quotes, and without
    documents that no shell runs: printed, Python's, or with a quote that is left open.
    """
    lines, number = text.splitlines(), 0
    while number < len(lines):
        found = None if lines[number].lstrip().startswith("#") else _OPENS.search(lines[number])
        end = _end(lines, number, found["end"]) if found else 0
        if end:
            document = lines[number : end + 1]
            lines[number : end + 1] = _read_into(document) or _without_text(document)
        number = max(number, end) + 1
    return "\n".join(lines)


def _read_into(lines: list[str]) -> list[str]:
    """A document that is read into a variable, as the assignment; nothing where it is none."""
    found = _READ.match(lines[0])
    value = "\n".join(lines[1:-1]).replace("\\\n", "").replace("\n", " ").strip()
    if not found or not _PLAIN.fullmatch(value) or "$(" in value:
        return []
    return [f'{found["before"]}{found["name"]}="{value}"', *[""] * (len(lines) - 1)]


def _without_text(lines: list[str]) -> list[str]:
    """A document with its own lines where a shell may run them."""
    if _NO_SHELL.match(lines[0]) is None and closes_quotes(lines[1:-1]):
        return lines
    return [lines[0], *[""] * (len(lines) - 2), lines[-1]]


def _end(lines: list[str], start: int, delimiter: str) -> int:
    """The line that ends a here-document, 0 where none does."""
    behind = range(start + 1, len(lines))
    return next((number for number in behind if lines[number].strip() == delimiter), 0)


def uncommented(line: str, quote: str = "") -> tuple[str, str]:
    """A line without its comment, and the quote that is open behind it; ``quote``: the one before it."""
    text = quote + line
    for part in _QUOTED.finditer(text):
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
