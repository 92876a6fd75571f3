"""Conditions of a shell text that its own literals decide: the branch that is taken, in place of both.

Nothing is run.  A condition on a file, a command, or a variable without a certain value stays as it is.
Source: POSIX.1-2017 chapter 2 and ``test``; ``[[ ]]`` and ``(( ))`` of bash 5.2.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from planner.configs.launchers.variables import Known, fill_lines, known_of, with_depth

_HEADER = re.compile(r"^[ \t]*(if|elif)[ \t]+(.*)")
_THEN_BEHIND = re.compile(r";[ \t]*then$")
_ELSE = re.compile(r"^[ \t]*else[ \t]*(?:#.*)?$")
_THEN = re.compile(r"^[ \t]*then[ \t]*(?:#.*)?$")
_END = re.compile(r"^[ \t]*fi[ \t]*(?:#.*)?$")
_WORD = r"(\"[\w./:,@%+= -]*\"|'[\w./:,@%+= -]*'|[\w./:,@%+-]+)"
_COMPARED = re.compile(rf"^\[\[?[ \t]+{_WORD}[ \t]+(==?|!=|-eq|-ne|-gt|-ge|-lt|-le)[ \t]+{_WORD}[ \t]+\]?\]$")
_GIVEN = re.compile(rf"^\[\[?[ \t]+(-n|-z)[ \t]+{_WORD}[ \t]+\]?\]$")
_RECKONED = re.compile(r"^\(\([ \t]*(\d{1,9})[ \t]*(==|!=|>=|<=|>|<)[ \t]*(\d{1,9})[ \t]*\)\)$")
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_MOST = 100


def with_settled_conditions(text: str, folder: str) -> str:
    """``text`` with the taken branch alone, wherever one stands outside of loops and functions and literals
    decide it; ``folder``: that of the script.
    """
    lines = text.splitlines()
    for _ in range(_MOST):
        if (settled := _settle_first(lines, folder)) is None:
            return "\n".join(lines)
        lines = settled
    return "\n".join(lines)


def _settle_first(lines: Sequence[str], folder: str) -> list[str] | None:
    """Lines without the first condition that is settled, ``None`` where none is."""
    text = "\n".join(lines)
    depths = [depth for _, depth in with_depth(text)]
    known = known_of(text, folder)
    for index in fill_lines(text, known, []):
        opens = _HEADER.match(lines[index])
        if opens and opens[1] == "if" and depths[index] == 1:
            found = _branch(lines, depths, index, known)
            if found is not None:
                taken, end = found
                return [*lines[:index], *taken, *lines[end + 1 :]]
    return None


def _branch(
    lines: Sequence[str], depths: Sequence[int], start: int, known: Known
) -> tuple[list[str], int] | None:
    """The lines of the branch that is taken, and where the condition ends."""
    taken: list[str] | None = None
    active = _holds(lines[start], known)
    if active is None:
        return None
    branch: list[str] = []
    for index in range(start + 1, len(lines)):
        line = lines[index]
        inner = depths[index] > 1
        header = None if inner else _HEADER.match(line)
        if not inner and _END.match(line):
            if active and taken is None:
                taken = branch
            return taken or [], index
        if not inner and (_ELSE.match(line) or (header and header[1] == "elif")):
            if active and taken is None:
                taken = branch
            active = True if header is None else _holds(line, known)
            if taken is None and active is None:
                return None
            branch = []
        elif not (_THEN.match(line) and not inner):
            branch.append(line)
    return None


def _holds(line: str, known: Known) -> bool | None:
    """Whether the condition of a line holds, ``None`` where literals do not say it."""
    header = _HEADER.match(line)
    written = "" if header is None else header[2].split(" #")[0].rstrip()
    text = known.fill(_THEN_BEHIND.sub("", written).rstrip(), 0)
    if compared := _COMPARED.match(text):
        left, sign, right = compared[1].strip("\"'"), compared[2], compared[3].strip("\"'")
        if sign in ("=", "==", "!="):
            return (left == right) != (sign == "!=")
        return _NUMBERS[sign](int(left), int(right)) if left.isdecimal() and right.isdecimal() else None
    if given := _GIVEN.match(text):
        return bool(given[2].strip("\"'")) == (given[1] == "-n")
    if reckoned := _RECKONED.match(text):
        return _NUMBERS[reckoned[2]](int(reckoned[1]), int(reckoned[3]))
    return None
