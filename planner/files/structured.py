"""JSON, TOML and YAML of untrusted origin -> plain values:
depth and numbers bounded before a parser could fail on them.

What is wrong is said by place and kind.  No message repeats what stands in the text,
because nobody knows yet what file it is.
"""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InputFileError
from planner.files.malformed import MAX_DEPTH, MAX_DIGITS, TOO_DEEP, MalformedError
from planner.files.reading import MAX_CONFIG_BYTES, read_text

if TYPE_CHECKING:
    import yaml

_TWICE = "a name is given twice in one object"

_DIGITS = re.compile(rf"[0-9a-fA-F_]{{{MAX_DIGITS + 1}}}")
_BRACKETS = re.compile(r"[\[\]{}]")
# A string without its end goes to the end of the text, so that no text is searched twice.
_JSON_STRING = re.compile(r'"(?:[^"\\]+|\\.?)*+(?:"|\Z)', re.DOTALL)
_JSON_TOKEN = re.compile(r'("(?:[^"\\]+|\\.?)*+(?:"|\Z))(\s*:)?|[\[\]{}]', re.DOTALL)
_TOML_STRING = re.compile(
    r'"""(?:[^"\\]+|\\.?|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^']+|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]+|\\[^\n]?)*+"?'
    r"|'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
_DOTTED = re.compile(rf"(?:\.[\w \t-]*+){{{MAX_DEPTH + 1}}}")
_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")
# Messages of tomllib that repeat a key (CPython 3.11 to 3.14, tomllib/_parser.py).
_TOML_TWICE = ("Cannot declare", "Cannot mutate", "Duplicate inline", "Cannot overwrite")
# What YAML's messages quote: single characters and names of its own tokens, which stay, and the rest (a tag,
# an anchor).
_YAML_QUOTED = re.compile(r"""('<[a-z ]+>'|'.'|".")|'[^']{2,}'?|"[^"]{2,}"?""")


def read_toml(path: Path) -> dict[str, Any]:
    """The table that a TOML file of at most 1 MiB holds.

    Raises:
        InputFileError: not a regular file, unreadable, too large, not UTF-8, not TOML, or nested too deeply.
    """
    return toml_table(path, read_text(path, MAX_CONFIG_BYTES))


def toml_table(path: str | Path, text: str) -> dict[str, Any]:
    """The table that ``text`` of the file ``path`` holds.

    Raises:
        InputFileError: not TOML, or nested too deeply.
    """
    table: dict[str, Any] = _of(path, "TOML", _toml, text)
    return table


def csv_cells(line: str) -> list[str]:
    """The cells of one line of CSV, without blanks around them; of a blank line one that is empty."""
    return [cell.strip() for cell in next(csv.reader([line]), [""])] or [""]


def json_value(path: str | Path, text: str, *, infinity: bool = False) -> Any:
    """The value that ``text`` of the file ``path`` holds; ``infinity`` as for :func:`parse_json`.

    Raises:
        InputFileError: as :func:`parse_json`.
    """
    return _of(path, "JSON", partial(parse_json, infinity=infinity), text)


def parse_json(text: str, *, infinity: bool = False) -> Any:
    """A JSON value, which with ``infinity`` may hold ``Infinity`` as Python writes it.

    Raises:
        MalformedError: not JSON, nested too deeply, a name given twice,
        or a number that JSON does not have or no float can hold.
    """
    if text.count("[") + text.count("{") > MAX_DEPTH or _DIGITS.search(text):
        _refuse_extremes(_JSON_STRING.sub(" ", text))
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_infinity if infinity else _refuse_constant,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        if not text.strip():
            raise MalformedError("empty") from None
        # Some messages end in ": " and what stands there; others name the colon that is missing.
        raise MalformedError(
            error.msg.partition(": ")[0].removesuffix(" at"), error.lineno, error.pos + 1
        ) from None
    except _GivenTwiceError:
        at = _twice_at(text)
        raise MalformedError(_TWICE, text.count("\n", 0, at) + 1, at + 1) from None
    except RecursionError:
        raise MalformedError(TOO_DEEP) from None


def yaml_value(path: str | Path, text: str) -> tuple[Any, dict[str, int]]:
    """The value of a YAML text without aliases,
    and the keys that it gives again with the line of the last, which counts.

    Raises:
        InputFileError: not YAML, with aliases, a key that is a list or a table, tags that make objects,
        or nested too deeply.
    """
    import yaml

    from planner.files.yaml_loader import BoundedLoader

    try:
        loader = BoundedLoader(text)
        return loader.get_single_data(), loader.twice
    except MalformedError as error:
        raise InputFileError(path, error.problem, error.line) from None
    except yaml.MarkedYAMLError as error:
        mark: yaml.Mark | None = error.problem_mark
        kind = _YAML_QUOTED.sub(lambda found: found[1] or "(...)", error.problem or "unknown")
        kind = kind.partition("\n")[0]
        if (
            mark is not None
            and mark.buffer is not None
            and mark.buffer[mark.pointer : mark.pointer + 1] == "\t"
        ):
            kind = "a tab where YAML takes spaces"
        raise InputFileError(
            path, f"not valid YAML: {kind}", None if mark is None else mark.line + 1
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputFileError(path, "not valid YAML: a character that no text has", line) from None
    except (yaml.YAMLError, ValueError, ArithmeticError):
        raise InputFileError(path, "not valid YAML") from None
    except RecursionError:
        raise InputFileError(path, TOO_DEEP) from None


def _of(path: str | Path, form: str, parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except MalformedError as error:
        raise InputFileError(path, f"not valid {form}: {error.problem}", error.line) from None


def _toml(text: str) -> dict[str, Any]:
    bare = _TOML_STRING.sub(" ", text)
    _refuse_extremes(bare)
    if _DOTTED.search(bare):
        # A key of many parts takes tomllib the square of their number.
        raise MalformedError(TOO_DEEP)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _TOML_PLACE.search(message)
        kind = (
            "a key or a table is given twice"
            if message.startswith(_TOML_TWICE)
            else _TOML_PLACE.sub("", message)
        )
        raise MalformedError(kind, int(place[1]) if place and place[1] else None) from None
    except RecursionError:
        raise MalformedError(TOO_DEEP) from None
    except (ValueError, ArithmeticError):
        raise MalformedError("a date or a number that does not exist") from None


def _refuse_extremes(bare: str) -> None:
    """``bare``: a text whose strings are taken out."""
    depth = 0
    for bracket in _BRACKETS.findall(bare):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise MalformedError(TOO_DEEP)
    if _DIGITS.search(bare):
        raise MalformedError(f"a number of more than {MAX_DIGITS} digits")


class _GivenTwiceError(Exception):
    """A name occurs twice in one object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise _GivenTwiceError
    return names


def _twice_at(text: str) -> int:
    """Where a name is given again; ``text`` is JSON."""
    names: list[set[str]] = []
    for token in _JSON_TOKEN.finditer(text):
        if token[0] in ("{", "["):
            names.append(set())
        elif token[0] in ("}", "]"):
            names.pop()
        elif token[2]:
            name = json.loads(token[1])
            if name in names[-1]:
                return token.start()
            names[-1].add(name)
    return 0


def _refuse_constant(name: str) -> float:
    raise MalformedError(f"'{name}' is not a number")


def _infinity(name: str) -> float:
    return math.inf if name == "Infinity" else _refuse_constant(name)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise MalformedError("a number too large for any use")
    return value
