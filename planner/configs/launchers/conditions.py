"""Conditions of a shell text whose outcome its literals decide: ``if [ "$N" -gt 1 ]; then`` where ``N=4``,
and loops over one value.  Nothing is run, and nothing is asked of the machine: a file that may be there
decides nothing.

Source: POSIX.1-2017 ``test`` and 2.9.4.1 (if); ``[[ ]]`` of bash 5.2.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import eq, ge, gt, le, lt, ne

Line = tuple[str, int]
"""A line with the number of blocks that it is in, its own included."""
_HEAD = re.compile(r"^[ \t]*(if|elif)[ \t]+(.*?)[ \t]*;[ \t]*then[ \t]*(?:#.*)?$")
_ELSE = re.compile(r"^[ \t]*else[ \t]*(?:#.*)?$")
_BRANCH = re.compile(r"^[ \t]*(?:elif|else)\b")
_END = re.compile(r"^[ \t]*fi[ \t]*(?:#.*)?$")
_STOPS = re.compile(r"^[ \t]*(?:exit|return)\b")
_NAME = r"([A-Za-z_][A-Za-z0-9_]*)"
_OVER_ONE = re.compile(
    rf"^[ \t]*for[ \t]+{_NAME}[ \t]+in[ \t]+(\"?[\w./:,@%+=-]{{1,1000}}\"?)[ \t]*(;[ \t]*do)?[ \t]*(?:#.*)?$"
)
_TO_ONE = re.compile(
    rf"^[ \t]*for[ \t]*\(\([ \t]*{_NAME}=(0);[ \t]*\1[ \t]*<[ \t]*1;[ \t]*(?:\1\+\+|\+\+\1)[ \t]*\)\)"
    r"[ \t]*(;[ \t]*do)?[ \t]*(?:#.*)?$"
)
_DONE = re.compile(r"^[ \t]*done[ \t]*(?:#.*)?$")
_BRACKETS = {"[": "]", "[[": "]]"}
_NUMBERS = {"-eq": eq, "-ne": ne, "-gt": gt, "-ge": ge, "-lt": lt, "-le": le}
# What a shell would replace, or compare as a pattern.
_UNKNOWN = re.compile(r"[$`*?\\]")


def decided(lines: Sequence[Line], start: int, fill: Callable[[str], str]) -> list[Line] | None:
    """The lines of the block that begins at ``start``, without those that do not run and without its own
    words, as many as before; ``None`` where the text does not decide.

    ``fill``: puts in what is known.  A branch that ends the script is none that somebody launches.
    """
    if _HEAD.match(lines[start][0]) is None:
        return None
    ends = (
        index for index in range(start, len(lines)) if lines[index][1] == 1 and _END.match(lines[index][0])
    )
    end = next(ends, None)
    if end is None:
        return None
    heads = [start, *(index for index in range(start, end) if _is_branch(lines[index])), end]
    for head, following in pairwise(heads):
        outcome = _outcome(lines[head][0], fill)
        if outcome is None:
            return None
        body = range(head + 1, following)
        if outcome and any(_STOPS.match(lines[index][0]) for index in body):
            return None
        if outcome:
            return _kept(lines, range(start, end + 1), body)
    return _kept(lines, range(start, end + 1), range(0))


def once(lines: Sequence[Line], start: int, fill: Callable[[str], str]) -> list[str] | None:
    """The lines with a loop over one value, which begins at ``start``, as those that set it and run once;
    ``None`` where there is no such loop.
    """
    if not lines[start][0].lstrip().startswith("for"):
        return None
    head = fill(lines[start][0])
    found = _OVER_ONE.match(head) or _TO_ONE.match(head)
    depth, inside = lines[start][1], range(start + 1, len(lines))
    ends = (index for index in inside if lines[index][1] == depth and _DONE.match(lines[index][0]))
    end = next(ends, None)
    if found is None or end is None or not (found[3] or lines[start + 1][0].strip() == "do"):
        return None
    empty = (end,) if found[3] else (start + 1, end)
    texts = ["" if index in empty else line for index, (line, _) in enumerate(lines)]
    texts[start] = f"{found[1]}={found[2]}"
    return texts


def _is_branch(line: Line) -> bool:
    return line[1] == 1 and _BRANCH.match(line[0]) is not None


def _kept(lines: Sequence[Line], block: range, body: range) -> list[Line]:
    return [(lines[index][0], lines[index][1] - 1) if index in body else ("", 0) for index in block]


def _outcome(line: str, fill: Callable[[str], str]) -> bool | None:
    """Whether a branch runs where those above it do not."""
    if _ELSE.match(line):
        return True
    head = _HEAD.match(line)
    return None if head is None else holds(fill(head[2]))


def holds(condition: str) -> bool | None:
    """Whether a condition of literals holds; ``None`` where it asks something else."""
    try:
        words = shlex.split(condition)
    except ValueError:
        return None
    found: bool | None = None
    sign = "&&"
    while words:
        closing = _BRACKETS.get(words[0])
        if closing is None or closing not in words:
            return None
        end = words.index(closing)
        one = _test(words[1:end])
        if one is None:
            return None
        found = one if found is None else (found and one) if sign == "&&" else (found or one)
        sign, words = (words[end + 1] if words[end + 1 :] else ""), words[end + 2 :]
        if sign not in ("", "&&", "||") or (sign and not words):
            return None
    return found


def _test(words: list[str]) -> bool | None:
    """One pair of brackets; ``[[ ]]`` holds several, of which ``&&`` binds more."""
    for sign, joined in (("||", any), ("&&", all)):
        if sign in words:
            at = words.index(sign)
            both = (_test(words[:at]), _test(words[at + 1 :]))
            return None if None in both else joined(map(bool, both))
    if words[:1] == ["!"]:
        rest = _test(words[1:])
        return None if rest is None else not rest
    if any(map(_UNKNOWN.search, words)):
        return None
    if len(words) == 1:
        return words[0] != ""
    if len(words) == 2 and words[0] in ("-n", "-z"):
        return (words[1] != "") == (words[0] == "-n")
    return _compared(*words) if len(words) == 3 else None


def _compared(left: str, sign: str, right: str) -> bool | None:
    if sign in ("=", "==", "!="):
        return (left == right) == (sign != "!=")
    if sign in _NUMBERS and left.isdecimal() and right.isdecimal():
        return bool(_NUMBERS[sign](int(left), int(right)))
    return None
