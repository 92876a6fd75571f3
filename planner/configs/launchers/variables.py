"""Variables that a shell text sets to a literal, put in where they are used.  Nothing is run.

Only what cannot be otherwise is put in: a variable whose value, a plain word, is set on a line of its own,
outside of conditions, loops and functions.  One that is also set inside of them stays as it is written.
Source: POSIX.1-2017 chapter 2; ``expr`` of whole numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_SET = re.compile(rf"^[ \t]*(?:export[ \t]+)?({_NAME})=(\S*|\"[^\"]*\"|'[^']*')[ \t]*(?:#.*)?$")
_SET_ANYWHERE = re.compile(rf"(?:^|[\s;&|(])(?:(?:for|select)[ \t]+)?({_NAME})(?:\+?=|[ \t]+in\b)")
# Arithmetic that sets a variable: ``((N*=2))``, ``((N++))``, ``let N=2``.
_RECKONED = re.compile(r"\(\((.*?)\)\)|(?:^|[\s;&|])let[ \t]+(.*)")
_SETS_IN_ARITHMETIC = re.compile(r"(?<![=!<>])=(?!=)|<<=|>>=|\+\+|--")
_PRINTED = re.compile(rf"\bprintf[ \t]+-v[ \t]+({_NAME})")
# What may set any variable; ``set`` with options of the shell sets none.
_FROM_ELSEWHERE = re.compile(r"^[ \t]*(?:eval|source|\.|read|unset|set(?=[ \t]+--(?:[ \t]|$)))(?=[ \t])")
# So long that no path is longer, and that variables of variables do not grow without an end.
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+=-]{0,1000}")
_USED = re.compile(rf"\$(?:\{{({_NAME})\}}|({_NAME}))")
_OPENS = re.compile(
    r"^[ \t]*(?:if|for|while|until|case|select)\b|^[ \t]*(?:function\b|[\w-]+[ \t]*\(\))|\{[ \t]*$"
)
_CLOSES = re.compile(r"^[ \t]*(?:fi|done|esac|\})(?=$|[\s;|&>])|;[ \t]*(?:fi|done|esac)[ \t]*(?:$|[;|&>#])")
_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*[\\'\"]?([A-Za-z_]\w*)")
_DIGITS = 9
# Whole numbers with signs between them, in ``$(( ))``, and as words behind ``expr``.
# A shell reads one with a leading zero as octal.
_NUMBER = rf"(?:0|[1-9]\d{{0,{_DIGITS - 1}}})(?!\d)"
_ARITHMETIC = re.compile(
    rf"\$\(\([ \t]*({_NUMBER}(?:[ \t]*[-+*/%][ \t]*{_NUMBER}){{1,4}})[ \t]*\)\)"
    rf"|\$\([ \t]*expr[ \t]+({_NUMBER}(?:[ \t]+\\?[-+*/%][ \t]+{_NUMBER}){{1,4}})[ \t]*\)"
)
_TERM = re.compile(r"\d+|[-+*/%]")


def with_values(text: str) -> str:
    """``text`` with literal variables and the arithmetic of whole numbers put in, line by line."""
    known: dict[str, str] = {}
    unsure = _set_inside(text)
    lines, goes_on = list[str](), False
    for line, depth in with_depth(text):
        filled = _computed(_USED.sub(lambda found: _value(found, known), line))
        lines.append(filled)
        for name in _set_by(line):
            known.pop(name, None)
        if _FROM_ELSEWHERE.match(line):
            known.clear()
        found = None if goes_on or depth else _SET.match(filled)
        goes_on = line.endswith("\\")
        value = found[2].strip("\"'") if found else ""
        if found and found[1] not in unsure and _PLAIN.fullmatch(value):
            known[found[1]] = value
    return "\n".join(lines)


def _value(found: re.Match[str], known: Mapping[str, str]) -> str:
    return known.get(found[1] or found[2], found[0])


def _computed(line: str) -> str:
    """Sums, products and quotients of whole numbers."""
    return _ARITHMETIC.sub(_result, line)


def _result(found: re.Match[str]) -> str:
    """From the left, products and quotients first; a quotient by nothing stays as it is written."""
    terms = _TERM.findall(found[1] or found[2])
    total, part, sign = 0, int(terms[0]), 1
    for operator, word in zip(terms[1::2], terms[2::2], strict=True):
        number = int(word)
        if operator in "/%" and number == 0:
            return found[0]
        if operator in "+-":
            total, part, sign = total + sign * part, number, 1 if operator == "+" else -1
        else:
            part = part * number if operator == "*" else part // number if operator == "/" else part % number
    return str(total + sign * part)


def _set_inside(text: str) -> frozenset[str]:
    """Variables that a condition, a loop or a function sets."""
    return frozenset(name for line, depth in with_depth(text) if depth for name in _set_by(line))


def _set_by(line: str) -> Iterator[str]:
    """Variables that a line sets, by arithmetic and ``printf -v`` too."""
    yield from _SET_ANYWHERE.findall(line)
    yield from _PRINTED.findall(line)
    for in_brackets, behind_let in _RECKONED.findall(line):
        text = in_brackets or behind_let
        if _SETS_IN_ARITHMETIC.search(text):
            yield from re.findall(_NAME, text)


def with_depth(text: str) -> Iterator[tuple[str, int]]:
    """Each line with the number of conditions, loops and functions that it is in, its own included."""
    depth, document = 0, ""
    for line in text.splitlines():
        if document:
            # Text that a program is given: its braces and words open nothing here.
            yield line, depth
            document = "" if line.strip() == document else document
            continue
        bare = "" if line.lstrip().startswith("#") else line.split(" #")[0].rstrip()
        depth += bool(_OPENS.search(bare))
        yield line, depth
        if _CLOSES.search(bare):
            depth = max(0, depth - 1)
        found = _DOCUMENT.search(bare)
        document = found[1] if found else ""
