"""Conditions of a shell text whose outcome its literals decide: ``if [ "$N" -gt 1 ]; then`` where ``N=4``,
and loops over literals.  Nothing is run, and nothing is asked of the machine: a file that may be there
decides nothing.

Source: POSIX.1-2017 ``test``, 2.9.4.1 (if) and 2.9.4 (case); ``[[ ]]`` of bash 5.2.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from operator import eq, ge, gt, le, lt, ne

Line = tuple[str, int]
"""A line with the number of blocks that it is in, its own included."""
_HEAD = re.compile(r"^[ \t]*(if|elif)[ \t]+(.*?)[ \t]*;[ \t]*then[ \t]*(?:#.*)?$")
_ELSE = re.compile(r"^[ \t]*else[ \t]*(?:#.*)?$")
_BRANCH = re.compile(r"^[ \t]*(?:elif|else)\b")
_END = re.compile(r"^[ \t]*fi[ \t]*(?:#.*)?$")
_STOPS = re.compile(r"^[ \t]*(?:exit|return)\b")
_CASE = re.compile(r"^[ \t]*case[ \t]+(.*?)[ \t]+in[ \t]*(?:#.*)?$")
_PATTERN = re.compile(r"^[ \t]*\(?([^()$`]+)\)(.*)$")
_ENDS_BRANCH = re.compile(r";;[ \t]*(?:#.*)?$")
_GOES_ON = re.compile(r";;?&[ \t]*(?:#.*)?$")
_ESAC = re.compile(r"^[ \t]*esac[ \t]*(?:#.*)?$")
_NAME = r"([A-Za-z_][A-Za-z0-9_]*)"
_VALUE = r"\"?[\w./:,@%+=-]{1,1000}\"?"
_DO = r"[ \t]*(?P<do>;[ \t]*do)?[ \t]*(?:#.*)?$"
_OVER = re.compile(
    rf"^[ \t]*for[ \t]+{_NAME}[ \t]+in[ \t]+(?P<values>{_VALUE}(?:[ \t]+{_VALUE})*"
    rf"|\{{\d{{1,4}}\.\.\d{{1,4}}\}}|\$\([ \t]*seq(?:[ \t]+\d{{1,4}}){{1,2}}[ \t]*\)){_DO}"
)
_TO = re.compile(
    rf"^[ \t]*for[ \t]*\(\([ \t]*{_NAME}=(?P<first>\d{{1,4}});[ \t]*\1[ \t]*<(?P<also>=?)[ \t]*"
    rf"(?P<last>\d{{1,4}});[ \t]*(?:\1\+\+|\+\+\1|\1\+=1)[ \t]*\)\){_DO}"
)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}|\$\([ \t]*seq[ \t]+(?:(\d+)[ \t]+)?(\d+)[ \t]*\)")
# Whoever leaves a turn, or the loop, decides which values are run.
_LEAVES = re.compile(r"(?:^|[\s;&|{])(?:break|continue)\b")
# What may be another one in each turn.
_ADDS_UP = re.compile(r"^[ \t]*(?:export[ \t]+)?[A-Za-z_]\w*(?:\[.*\])?(?:\+=|=.*[$`])|\(\(|\blet[ \t]")
_MOST_VALUES, _MOST_RUNS, _MOST_LINES = 12, 60, 4_000
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
    if case := _CASE.match(lines[start][0]):
        return _chosen(lines, start, fill(case[1]))
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


def _chosen(lines: Sequence[Line], start: int, written: str) -> list[Line] | None:
    """The lines of a ``case`` of a literal, without the branches of other patterns."""
    ends = (
        index for index in range(start, len(lines)) if lines[index][1] == 1 and _ESAC.match(lines[index][0])
    )
    end = next(ends, None)
    word = _one_word(written)
    if end is None or word is None or any(_GOES_ON.search(line) for line, _ in lines[start:end]):
        return None
    kept, chosen, inside, runs = [("", 0)] * (end + 1 - start), False, False, False
    for index in range(start + 1, end):
        line, depth = lines[index]
        first = None if inside or depth > 1 else _PATTERN.match(line)
        if first is None and not inside:
            if line.strip() and not line.lstrip().startswith("#"):
                return None
            continue
        if first is not None:
            runs = not chosen and _is_one_of(word, first[1])
        text = first[2] if first else line
        inside = depth > 1 or _ENDS_BRANCH.search(text) is None
        if runs:
            if _STOPS.match(text):
                return None
            kept[index - start] = (text if inside else _ENDS_BRANCH.sub("", text), depth - 1)
            chosen = chosen or not inside
    return None if inside else kept


def _one_word(written: str) -> str | None:
    """A text as the one literal that a shell takes it for."""
    try:
        words = shlex.split(written)
    except ValueError:
        return None
    return None if len(words) != 1 or _UNKNOWN.search(words[0]) else words[0]


def _is_one_of(word: str, patterns: str) -> bool:
    return any(fnmatchcase(word, each.strip().strip("\"'")) for each in patterns.split("|"))


def unrolled(
    lines: Sequence[Line], start: int, fill: Callable[[str], str], most: int
) -> tuple[list[str], int] | None:
    """The lines with a loop over literals, which begins at ``start``, as those that set each and run the
    body, and how many times, ``most`` at most; ``None`` where there is no such loop.

    Where the body does not ask for the value, it runs once.
    """
    if not lines[start][0].lstrip().startswith("for"):
        return None
    head = fill(lines[start][0])
    found = _OVER.match(head) or _TO.match(head)
    depth, inside = lines[start][1], range(start + 1, len(lines))
    ends = (index for index in inside if lines[index][1] == depth and _DONE.match(lines[index][0]))
    end = next(ends, None)
    if found is None or end is None or not (found["do"] or lines[start + 1][0].strip() == "do"):
        return None
    body = [line for line, _ in lines[start + (1 if found["do"] else 2) : end]]
    values = _values(found)
    if not any(re.search(rf"\b{found[1]}\b", line) or _ADDS_UP.search(line) for line in body):
        # The variable keeps the last one behind the loop.
        values = values[-1:]
    alone = len(values) == 1
    every = math.prod((len(values), *map(len, _loops_in(body, fill))))
    if not values or len(values) > min(_MOST_VALUES, most) or (not alone and every > _MOST_RUNS):
        return None
    if not alone and any(map(_LEAVES.search, body)):
        return None
    runs = [line for value in values for line in (f"{found[1]}={value}", *body)]
    texts = [*(line for line, _ in lines[:start]), *runs, *(line for line, _ in lines[end + 1 :])]
    return (texts, len(values)) if alone or len(texts) <= _MOST_LINES else None


def _loops_in(body: Sequence[str], fill: Callable[[str], str]) -> Iterator[list[str]]:
    """The values of each loop over literals in a body."""
    for line in body:
        if line.lstrip().startswith("for"):
            head = fill(line)
            found = _OVER.match(head) or _TO.match(head)
            if found and (values := _values(found)):
                yield values


def _values(head: re.Match[str]) -> list[str]:
    """The values that a loop goes through."""
    if "values" not in head.groupdict():
        return [str(each) for each in range(int(head["first"]), int(head["last"]) + bool(head["also"]))]
    numbers = _RANGE.fullmatch(head["values"])
    if numbers is None:
        return head["values"].split()
    first, last = (numbers[1], numbers[2]) if numbers[2] else (numbers[3] or "1", numbers[4])
    return [str(each) for each in range(int(first), int(last) + 1)]


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
