"""What the names of a program stand for, as far as its text alone says."""

from __future__ import annotations

import ast
import operator
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.units import TERA
from planner.words import words

_LIBRARIES = words("transformers trl peft unsloth bitsandbytes accelerate liger_kernel torch")
SETTINGS = re.compile(r"\w*(?:Config|Arguments)$")
"""Classes of a library whose instances are settings, by their names."""
OWN = " of the program"
"""How what a class of the program makes is called: its name and this."""
# Characters of a text and members of a list that are kept; members, inner ones included, that are looked at.
_LONGEST, MOST_MEMBERS = 10_000, 1_000
_LARGEST_NUMBER = 1_000 * TERA
_SHOWN = 60
_NUMBERS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, among: value in among,
    ast.NotIn: lambda value, among: value not in among,
}


@dataclass(frozen=True, slots=True)
class Unknown:
    """What only a run of the program knows.  ``text``: the expression."""

    text: str


@dataclass(frozen=True, slots=True)
class Part(Unknown):
    """A part of a model or of a trainer; ``settings``: the config of a model, whose values change nothing
    themselves.
    """

    settings: bool = False


@dataclass(frozen=True, slots=True)
class Library:
    """A name that was imported, ``transformers.Trainer``, or one that the text does not make:
    ``builtins.print``.
    """

    name: str

    @property
    def is_imported(self) -> bool:
        """Whether it is a package's, not Python's own."""
        return not self.name.startswith("builtins.")

    @property
    def trains(self) -> bool:
        """Whether it is of a package that trains."""
        return is_library(self.name.partition(".")[0])

    @property
    def is_foreign(self) -> bool:
        """Whether it is of a package of which nothing is known."""
        package = self.name.partition(".")[0]
        return package not in (*_LIBRARIES, "builtins") and package not in sys.stdlib_module_names

    @property
    def last(self) -> str:
        """The name without its packages."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Own:
    """A function or a class that the program has itself; ``bases``: what the class is derived from;
    ``scopes``: the names that it sees, those of its module first; ``of``: the class whose method it is.
    """

    node: ast.FunctionDef | ast.ClassDef
    bases: tuple[str, ...] = ()
    scopes: tuple[dict[str, Any], ...] = field(default=(), repr=False, compare=False)
    of: Own | None = field(default=None, repr=False, compare=False)

    @property
    def marks(self) -> tuple[str, ...]:
        """Names of its decorators."""
        return tuple(ast.unparse(each).rpartition(".")[2] for each in self.node.decorator_list)


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the program's own that it imports, with its names."""

    scope: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Opened:
    """A file that was opened, or its text; ``path`` as the program says it."""

    path: str


@dataclass(slots=True, eq=False)
class Made:
    """What a class makes: its name, the arguments by their names, and the line; ``by``: the program's own
    class.
    """

    kind: str
    given: dict[str, Any]
    line: int
    by: Own | None = None


@dataclass(slots=True, eq=False)
class Model(Made):
    """A model that was loaded, and what was done with it: the calls that put adapters on it, that prepared it
    for 4 or 8 bits, and that switched checkpoints on.  ``frozen`` and ``norms_raised``: lines that froze all
    of its weights, and that moved its norms to fp32.  ``gathered_whole``: classes that ZeRO-3 gathers whole.
    """

    adapters: Made | None = None
    prepared: Made | None = None
    checkpoints: Made | None = None
    frozen: int = 0
    norms_raised: int = 0
    gathered_whole: list[str] = field(default_factory=list)
    remarks: list[tuple[int, str]] = field(default_factory=list)


def is_library(package: str) -> bool:
    """Whether a package trains."""
    return package in _LIBRARIES


def unknown(node: ast.AST) -> Unknown:
    """What ``node`` is, in its own words."""
    text = " ".join(ast.unparse(node).split())
    return Unknown(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...")


def part(node: ast.AST, *, settings: bool = False) -> Part:
    """What ``node`` is of a model or a trainer, in its own words."""
    return Part(unknown(node).text, settings)


def leaves(value: Any) -> list[Any] | None:
    """What is in a table or a list, however deep; nothing where it is too much, or holds itself."""
    found, waiting, left = list[Any](), [value], MOST_MEMBERS
    while waiting:
        each = waiting.pop()
        inner = list(each.values()) if isinstance(each, dict) else each
        if not isinstance(inner, list | tuple):
            found.append(inner)
            continue
        left -= len(inner)
        if left < 0:
            return None
        waiting += inner
    return found


def is_known(value: Any) -> bool:
    """Whether a value is all there, inner ones included."""
    found = leaves(value)
    return found is not None and all(
        each is None or isinstance(each, bool | int | float | str) for each in found
    )


def truth(value: Any) -> bool | None:
    """Whether a condition holds; ``None`` where the text does not say."""
    if isinstance(value, Made | Own | Module):
        return True
    return bool(value) if is_known(value) else None


def combined(node: ast.BinOp, left: Any, right: Any) -> Any:
    """A sum, product or quotient of numbers, or a text joined to another."""
    for kind in (str, list) if isinstance(node.op, ast.Add) else ():
        both = isinstance(left, kind) and isinstance(right, kind)
        if both and len(left) + len(right) <= _LONGEST:
            return left + right
    if isinstance(node.op, ast.Div) and isinstance(left, str) and isinstance(right, str):
        # Of paths: texts have no quotient.
        return joined((left, right), "/") or unknown(node)
    if isinstance(node.op, ast.BitOr) and isinstance(left, dict) and isinstance(right, dict):
        return left | right
    numbers = [each for each in (left, right) if isinstance(each, int | float)]
    operate = _NUMBERS.get(type(node.op))
    if len(numbers) < 2 or operate is None or max(map(abs, numbers)) > _LARGEST_NUMBER:
        return unknown(node)
    try:
        return operate(left, right)
    except ZeroDivisionError:
        return unknown(node)


def joined(parts: Sequence[Any], between: str = "") -> str | None:
    """Texts and numbers as one text; nothing where one is neither, or it is too long."""
    if not all(isinstance(part, str) or is_number(part) for part in parts):
        return None
    text = between.join(map(str, parts))
    return text if len(text) <= _LONGEST else None


def is_number(value: Any) -> bool:
    """Whether it is a whole number that can be written out."""
    return isinstance(value, int) and abs(value) <= _LARGEST_NUMBER


def changed_text(text: str, method: str, values: Sequence[Any]) -> Any:
    """What a method of a text gives, for those that settings are written with; ``None`` of others."""
    if method == "split" and all(isinstance(each, str) and each for each in values):
        return text.split(*values[:1])
    if method in ("strip", "lower", "upper") and not values:
        return str(getattr(text, method)())
    if method in ("startswith", "endswith") and len(values) == 1 and isinstance(values[0], str):
        return bool(getattr(text, method)(values[0]))
    if method == "replace" and len(values) == 2 and all(isinstance(each, str) for each in values):
        longest = len(text) + text.count(values[0]) * len(values[1])
        return text.replace(*values) if longest <= _LONGEST else None
    return None


def changed_table(
    table: dict[str, Any], method: str, values: Sequence[Any], given: dict[str, Any]
) -> tuple[Any]:
    """What a method of a table gives, and does to it; in a tuple, for it may be nothing."""
    name = values[0] if values and isinstance(values[0], str) else None
    fallback = values[1] if len(values) > 1 else None
    if method in ("get", "pop", "setdefault") and name is not None and "**" not in table:
        found = table.get(name, fallback)
        if method == "pop":
            table.pop(name, None)
        elif method == "setdefault":
            table.setdefault(name, fallback)
        return (found,)
    if method == "update":
        table |= (
            values[0] if values and isinstance(values[0], dict) else {"**": Unknown("**")} if values else {}
        )
        table |= given
        return (None,)
    if method == "copy":
        return (dict(table),)
    if method not in ("items", "keys", "values", "get"):
        table["**"] = Unknown("**")
    return (Unknown(f".{method}()"),)


def changed_list(values: list[Any], method: str, given: Sequence[Any]) -> None:
    """What a method of a list does to it."""
    if method == "append" and len(given) == 1:
        values.append(given[0])
    elif method == "extend" and len(given) == 1 and isinstance(given[0], list):
        fits = len(values) + len(given[0]) <= _LONGEST
        values.extend(given[0] if fits else [Unknown(".extend()")])
    elif method not in ("index", "count", "copy"):
        values.append(Unknown(f".{method}()"))


def sliced(values: list[Any] | str, ends: Sequence[Any]) -> list[Any] | str | None:
    """A part of a list or of a text; nothing where the text does not say which."""
    known = all(each is None or is_number(each) for each in ends)
    return values[slice(*ends)] if known and ends[2] != 0 else None


def turned(node: ast.UnaryOp, value: Any) -> Any:
    """A condition that is denied, or a number below zero."""
    holds = truth(value)
    if isinstance(node.op, ast.Not) and holds is not None:
        return not holds
    return -value if isinstance(node.op, ast.USub) and isinstance(value, int | float) else unknown(node)


def compared(node: ast.Compare, values: Sequence[Any]) -> Any:
    """Whether two values compare as ``node`` says."""
    if len(values) != 2:
        return unknown(node)
    (left, right), kind = values, type(node.ops[0])
    is_class = isinstance(left, Library) and left.is_imported and left.last[:1].isupper()
    if (
        kind in (ast.Is, ast.IsNot)
        and right is None
        and (is_class or not isinstance(left, Unknown | Library))
    ):
        return (left is None) == (kind is ast.Is)
    if kind in (ast.Is, ast.IsNot) and isinstance(right, bool) and is_known(left):
        return (left is right) == (kind is ast.Is)
    operate = _COMPARED.get(kind)
    if operate is None or not (is_known(left) and is_known(right)):
        return unknown(node)
    try:
        return bool(operate(left, right))
    except TypeError:
        return unknown(node)
