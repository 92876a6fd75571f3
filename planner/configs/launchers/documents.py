"""Text that a script reads into a variable, as the assignment that sets the same value.

Source: bash 5.2: ``read -d ''`` takes the whole of a here-document, whose delimiter stands without quotes, so
that a line behind a backslash goes on.
"""

from __future__ import annotations

import re

_READ = re.compile(
    r"^(?P<before>[ \t]*)(?:IFS=(?:''|\"\")?[ \t]+)?read[ \t]+(?:-r[ \t]+)?-(?:r?d)[ \t]*(?:''|\"\")[ \t]+"
    r"(?:-r[ \t]+)?(?P<name>[A-Za-z_]\w*)[ \t]*<<-?[ \t]*(?P<end>[A-Za-z_]\w*)[ \t]*"
    r"(?:\|\|[ \t]*(?:true|:))?[ \t]*$"
)
# What means the same between double quotes.
_PLAIN = re.compile(r"[^\"'`\\]*")


def with_documents(text: str) -> str:
    """``text`` with ``read`` of a here-document as an assignment; one with quotes stays as it is written."""
    lines, number = text.splitlines(), 0
    while number < len(lines):
        found = _READ.match(lines[number])
        end = _end(lines, number, found["end"]) if found else 0
        if found and end:
            value = "\n".join(lines[number + 1 : end]).replace("\\\n", "").replace("\n", " ").strip()
            if _PLAIN.fullmatch(value) and "$(" not in value:
                assigned = f'{found["before"]}{found["name"]}="{value}"'
                lines[number : end + 1] = [assigned, *[""] * (end - number)]
        number += 1
    return "\n".join(lines)


def _end(lines: list[str], start: int, delimiter: str) -> int:
    """The line that ends a here-document, 0 where none does."""
    behind = range(start + 1, len(lines))
    return next((number for number in behind if lines[number].strip() == delimiter), 0)
