"""Arguments that a program asks for on its command line, and what a command gives of them.

Words are taken apart by Python's own ``argparse``, as the program does it (CPython 3.11 Lib/argparse.py);
fields of dataclasses become arguments as in transformers 5.23.0 hf_argparser.py.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from planner.configs.programs.values import Unknown

ABSENT = object()
"""Where an argument has no default."""
_TRUE, _FALSE = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
_OPTIONAL = re.compile(r"(?:typing\.|t\.)?Optional\[(.*)\]", re.DOTALL)
_UNION = re.compile(r"(?:typing\.)?Union\[(.*),\s*None(?:Type)?\]", re.DOTALL)
_OR_NONE = re.compile(r"(.*?)\s*\|\s*None|None\s*\|\s*(.*)", re.DOTALL)
_LIST = re.compile(r"(?:typing\.)?[Ll]ist\[(.*)\]", re.DOTALL)
_MOST_VALUES = 100
_ACTIONS = ("store", "store_true", "store_false", "append", "store_const")


class WrongWordsError(Exception):
    """Words at which the program stops; says why."""


@dataclass(frozen=True, slots=True)
class Option:
    """One argument.  ``names``: as they are written; ``kind``: the type of its values, "" for one that only a
    run knows; ``nargs``, ``action``, ``const`` and ``choices`` as argparse has them.
    """

    names: tuple[str, ...]
    target: str
    kind: str = "str"
    default: Any = ABSENT
    required: bool = False
    nargs: int | str | None = None
    action: str = "store"
    const: Any = None
    choices: tuple[Any, ...] = ()


def option_of_field(name: str, annotation: str, default: Any) -> tuple[Option, ...]:
    """The arguments that a field of a dataclass is."""
    names = tuple(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))
    kind = _plain(annotation)
    if kind == "bool":
        given = None if default is ABSENT and kind != annotation else default
        start = False if given is ABSENT else given
        found = Option(names, name, "truth", start, nargs="?", const=True)
        if default is not True:
            return (found,)
        negated = tuple(f"--no{mark}{each[2:]}" for mark, each in zip("_-", names, strict=False))
        return (found, Option(negated, name, default=True, action="store_const", const=False))
    inner = _LIST.fullmatch(kind)
    values = _plain(inner[1]) if inner else kind
    required = default is ABSENT
    return (Option(names, name, _kind_of(values), default, required=required, nargs="+" if inner else None),)


def _plain(annotation: str) -> str:
    """An annotation without what says that it may be nothing.

    One that is a text may hold any number of blanks, which the patterns below would take apart in every way.
    """
    text = " ".join(annotation.split()).strip("'\" ")
    found = _OPTIONAL.fullmatch(text) or _UNION.fullmatch(text) or _OR_NONE.fullmatch(text)
    return next(filter(None, found.groups())).strip() if found else text


def _kind_of(annotation: str) -> str:
    if annotation in ("str", "int", "float"):
        return annotation
    # A choice of texts, or a text as well as something else.
    parts = re.split(r"[\[\]|,\s]+", annotation)
    return "str" if annotation.startswith(("Literal[", "typing.Literal[")) or "str" in parts else ""


def parsed(
    options: Sequence[Option], words: Iterable[str], *, abbreviated: bool
) -> tuple[dict[str, Any], list[str]]:
    """Values that ``words`` give, by target, and the words that are of no option.

    Raises:
        WrongWordsError: the program stops at them.
    """
    parser = _Parser(
        add_help=False,
        allow_abbrev=abbreviated,
        conflict_handler="resolve",
        argument_default=argparse.SUPPRESS,
    )
    for each in options:
        parser.add_argument(*each.names, **_settings(each))
    try:
        found, rest = parser.parse_known_args(list(words))
    except (TypeError, ValueError, argparse.ArgumentError) as error:
        raise WrongWordsError(str(error)) from None
    return vars(found), rest


def missing(options: Sequence[Option], given: Iterable[str]) -> list[str]:
    """Names of arguments that must be given, and are not."""
    there = set(given)
    return [each.names[0] for each in options if each.required and each.target not in there]


def defaults(options: Sequence[Option]) -> dict[str, Any]:
    """What arguments are that nobody gives: one that must be given is not known."""
    found: dict[str, Any] = {}
    for each in options:
        if each.required and each.default is ABSENT:
            found[each.target] = Unknown(f"{each.names[0]} of its command line")
        elif each.default is not ABSENT:
            found[each.target] = typed(each.kind, each.default)
        else:
            off = {"store_true": False, "store_false": True}.get(each.action)
            found.setdefault(each.target, off)
    return found


def typed(kind: str, value: Any) -> Any:
    """A default, which argparse converts where it is text."""
    if not isinstance(value, str):
        return value
    try:
        return _KINDS[kind](value)
    except (ValueError, argparse.ArgumentTypeError):
        return Unknown(value)


def truth_of(text: str) -> Any:
    """What a word says of a switch; raises as argparse has it."""
    if "$" in text:
        return Unknown(text)
    if text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    raise argparse.ArgumentTypeError(f"'{text}' is neither true nor false")


def _literal(text: str) -> Any:
    """A value as ``fire`` reads it: a number, a list, true or false, else text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        inner = text.strip()
        # Words in brackets need no quotes there.
        listed = inner.startswith("[") and inner.endswith("]") and "[" not in inner[1:]
        return [each.strip() for each in inner[1:-1].split(",")] if listed else text


def _or_open(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """``convert`` for words without a variable of a shell."""

    def converted(text: str) -> Any:
        return Unknown(text.replace("$", "")) if "$" in text else convert(text)

    # argparse tells of a wrong word by this name.
    converted.__name__ = getattr(convert, "__name__", "")
    return converted


_KINDS: dict[str, Callable[[str], Any]] = {
    "str": _or_open(str),
    "int": _or_open(int),
    "float": _or_open(float),
    # Any text but an empty one is true to Python.
    "bool": _or_open(bool),
    "truth": truth_of,
    "literal": _or_open(_literal),
    "": Unknown,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WrongWordsError(message)


def _settings(option: Option) -> dict[str, Any]:
    """How argparse is told of an option."""
    found: dict[str, Any] = {"default": argparse.SUPPRESS}
    if option.names[0].startswith("-"):
        found["dest"] = option.target
    action = option.action if option.action in _ACTIONS else "store"
    found["action"] = action
    if action == "store_const":
        found["const"] = option.const
    if action in ("store", "append"):
        found["type"] = _KINDS[option.kind]
        nargs = option.nargs
        found["nargs"] = min(nargs, _MOST_VALUES) if isinstance(nargs, int) else nargs
        if nargs == "?":
            found["const"] = option.const
        if option.choices and option.kind:
            found["choices"] = _Choices(option.choices)
    return found


class _Choices(tuple[Any, ...]):
    """Values that an argument may have; a variable of a shell may be any of them."""

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Unknown) or super().__contains__(value)
