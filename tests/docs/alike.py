"""Whether a stored text still says what a command prints now: words exactly, numbers nearly.

So an example on a page has to be written anew only when it is no longer true.
A number may differ by 3 %, or by one in its last digit where it is rounded: where it has a decimal point,
or a unit behind it.  A share in percent may differ by one point.  What was asked for (``--batch 4``,
``seq=1024``) and names (``rtx4090``) count as words.  A date stands for any date, and a bar of letters may
differ by two cells for each letter.  Layout is ignored: a wider number moves columns.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterator

RELATIVE = 0.03
BAR_CELLS = 2
_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_TOKEN = re.compile(
    r"(?P<date>\b20\d\d-\d\d-\d\d\b)"
    r"|(?P<bar>(?<!\S)(?=[a-z.]{40})[a-z]*\.*(?!\S))"
    r"|(?P<rule>-{3,}|={3,})"
    r"|(?P<asked>--[a-z][\w-]*[ =]\S+|\w+=\S+)"
    r"|(?P<time>(?<![\w@.+-])(?:\d+ h )?(?:\d+ min )?\d[\d.]*\s(?:ms|s)\b)"
    rf"|(?P<number>(?<![\w@.-])[+-]?{_NUMBER}(?![\w]|\.\d)(?P<unit>\s?(?:%|(?:GiB|MiB|KiB|min|h)\b))?)"
    r"|(?P<word>\w[\w@./+-]*|\S)"
)
_SECONDS = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 0.001}
Value = tuple[float, float]
"""A number, and by how much it may differ because it is rounded."""


def differences(stored: str, now: str) -> list[str]:
    """Where two texts say different things, each in a line; empty where both say the same."""
    before, after = list(_tokens(stored)), list(_tokens(now))
    words, words_now = ([kind for kind, _, _ in each] for each in (before, after))
    if words != words_now:
        lines = difflib.unified_diff(stored.splitlines(), now.splitlines(), "stored", "now", lineterm="", n=1)
        return list(lines) or ["the words differ"]
    pairs = zip(before, after, strict=True)
    return [f"{old} is stored, {new} now" for (_, old, a), (_, new, b) in pairs if not _alike(a, b)]


def _tokens(text: str) -> Iterator[tuple[str, str, Value | Counter[str] | None]]:
    """(what has to be equal, how it is written, what may differ a little) of each part of a text."""
    for found in _TOKEN.finditer(text):
        kind, said = str(found.lastgroup), found[0]
        kind = "number" if kind == "unit" else kind
        if kind == "bar":
            yield "bar", said, Counter(said)
        elif kind == "time":
            yield "time", said, _seconds(said)
        elif kind == "number":
            unit = (found["unit"] or "").strip()
            number = said[: len(said) - len(found["unit"] or "")].replace(",", "")
            yield f"number {unit}", said, (float(number), _rounding(number, unit))
        elif kind in ("date", "rule"):
            yield kind, said, None
        else:
            yield said, said, None


def _seconds(said: str) -> Value:
    """Seconds of ``2 min 43 s`` or ``782 ms``, and what its last digit is worth."""
    parts = said.split()
    pairs = [(number, _SECONDS[unit]) for number, unit in zip(parts[::2], parts[1::2], strict=True)]
    number, last = pairs[-1]
    return sum(float(each) * seconds for each, seconds in pairs), _last_digit(number) * last


def _rounding(number: str, unit: str) -> float:
    if unit == "%":
        return 1.0
    return _last_digit(number) if unit or "." in number else 0.0


def _last_digit(number: str) -> float:
    return 10.0 ** -len(number.partition("e")[0].partition(".")[2])


def _alike(before: Value | Counter[str] | None, after: Value | Counter[str] | None) -> bool:
    if isinstance(before, Counter) and isinstance(after, Counter):
        return all(abs(before[each] - after[each]) <= BAR_CELLS for each in before | after)
    if isinstance(before, tuple) and isinstance(after, tuple):
        rounding = 1.001 * max(before[1], after[1])
        return math.isclose(before[0], after[0], rel_tol=RELATIVE, abs_tol=rounding)
    return before == after
