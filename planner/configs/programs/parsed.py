"""What parsers of command lines hand back: ``argparse``, ``HfArgumentParser``, TRL's ``TrlParser``.

Sources: transformers 5.23.0 hf_argparser.py; trl 1.16.0 scripts/utils.py TrlParser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.configs.launchers.arguments import named_values
from planner.configs.programs.library_classes import FIELDS, OF_TRAINER
from planner.configs.programs.options import (
    ABSENT,
    Option,
    WrongWordsError,
    defaults,
    missing,
    option_of_field,
    parsed,
)
from planner.configs.programs.values import OWN, Library, Made, Own, is_known
from planner.errors import InputFileError, show

_TYPES = ("str", "int", "float", "bool")
_TRUTHS = {"true": True, "false": False}
_NUMBER = re.compile(r"[+-]?(?:\d{1,18}\.?\d{0,18}|\.\d{1,18})(?:[eE][+-]?\d{1,2})?")
# Fields that several classes have: an argument of this name is given to each.
_SHARED = ("trust_remote_code",)


@dataclass(frozen=True, slots=True)
class Asked:
    """A class whose fields are arguments.  ``fields``: those that the program itself declares, each with its
    annotation and its default; ``library``: the class of a library that it is or is derived from; ``own``:
    the program's class.
    """

    name: str
    fields: Mapping[str, tuple[str, Any]]
    library: str = ""
    own: Own | None = None

    @property
    def options(self) -> list[Option]:
        """Its own fields as arguments."""
        return [each for name, given in self.fields.items() for each in option_of_field(name, *given)]


@dataclass(slots=True, eq=False)
class Parser(Made):
    """A parser that a program makes: of the fields of classes, and of ``options`` beside them."""

    classes: list[Asked] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Arguments(Made):
    """What a parser hands back.  ``said``: names that a command or its file gives; ``asked``: those that the
    program reads; ``own``: those that are none of the library's class that it is derived from.
    """

    said: frozenset[str] = frozenset()
    asked: set[str] = field(default_factory=set)
    own: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Given:
    """What a command gives: ``words``, over the values of a file.  ``path``: the program; ``strict``: it
    stops at what it does not know.
    """

    path: Path
    words: tuple[str, ...] = ()
    table: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = True


def option_of_call(names: Sequence[Any], settings: Mapping[str, Any], type_text: str) -> Option | None:
    """The argument that a call of ``add_argument`` adds; nothing where its names are not known."""
    if not names or not all(isinstance(name, str) and name.strip("-") for name in names):
        return None
    long = next((name for name in names if name.startswith("--")), names[0])
    target = str(settings.get("dest") or long.lstrip("-").replace("-", "_"))
    action, nargs, choices = settings.get("action", "store"), settings.get("nargs"), settings.get("choices")
    kind, default = _kind(settings.get("type"), type_text), settings.get("default", ABSENT)
    placed = not names[0].startswith("-")
    if isinstance(action, Library) and action.last == "BooleanOptionalAction":
        return Option(tuple(names), target, default=default, action="store_true")
    if not isinstance(action, str) or not (nargs is None or isinstance(nargs, int | str)):
        kind, action, nargs = "", "store", None
    required = settings.get("required") is True or (placed and nargs not in ("?", "*"))
    return Option(
        tuple(names), target, kind, default, required=required, nargs=nargs, action=action,
        const=settings.get("const"), choices=tuple(choices) if choices and is_known(choices) else (),
    )  # fmt: skip


def _kind(kind: Any, text: str) -> str:
    if kind is None or (isinstance(kind, Library) and kind.last == "Path"):
        return "str"
    if isinstance(kind, Library) and not kind.is_imported and kind.last in _TYPES:
        return kind.last
    # Functions such as ``str2bool``, and ``lambda x: x.lower() == "true"``.
    return "truth" if re.search(r"bool|['\"]true['\"]", text) else ""


def filled(parser: Parser, given: Given) -> tuple[list[Arguments], list[str]]:
    """An instance of each class of a parser, one for its other options, and words that none of them has.

    Raises:
        InputFileError: words at which the program stops.
    """
    options = [*parser.options, *(each for asked in parser.classes for each in asked.options)]
    by_library = any(asked.library for asked in parser.classes)
    try:
        said, rest = parsed(options, given.words, abbreviated=not by_library)
    except WrongWordsError as error:
        raise InputFileError(given.path, f"stops at its arguments: {show(str(error))}") from None
    table = {**given.table, **said}
    if by_library:
        own = {each.target for each in options}
        table |= {
            name: _value(each) for name, each in named_values(given.path, rest).items() if name not in own
        }
        rest = []
    if (given.words or given.table) and (lacks := missing(options, table)):
        raise InputFileError(given.path, f"stops without its argument {lacks[0]}: give that, too")
    found = [_instance(asked, parser, table) for asked in parser.classes]
    for asked, each in zip(parser.classes, found, strict=True):
        each.by = asked.own
    if parser.options:
        mine = {each.target for each in parser.options}
        found.append(_made(parser, OWN, table, defaults(parser.options), mine))
    taken = {name for each in found for name in each.said}
    left = [*rest, *(name for name in table if name not in taken)]
    if left and given.strict:
        raise InputFileError(given.path, f"stops at '{show(left[0])}', which is none of its arguments")
    return found, left


def _instance(asked: Asked, parser: Parser, table: Mapping[str, Any]) -> Arguments:
    mine = set(asked.fields)
    if not asked.library:
        return _made(parser, f"{asked.name}{OWN}", table, defaults(asked.options), mine)
    own = frozenset(
        name for name in mine if asked.library in OF_TRAINER and name not in OF_TRAINER[asked.library]
    )
    start = {**FIELDS.get(asked.library, {}), **defaults(asked.options)}
    if asked.library in FIELDS:
        names = {*mine, *FIELDS[asked.library]}
    else:
        # Whatever is of no other class is of the one with the settings of the trainer.
        others = {name for each in parser.classes if each is not asked for name in each.fields}
        others |= {name for each in parser.classes for name in FIELDS.get(each.library, ())}
        others |= {each.target for each in parser.options}
        names = {*mine, *_SHARED, *(name for name in table if name not in others)}
    return _made(parser, asked.library, table, start, names, own)


def _made(
    parser: Parser,
    kind: str,
    table: Mapping[str, Any],
    start: Mapping[str, Any],
    names: Iterable[str],
    own: frozenset[str] = frozenset(),
) -> Arguments:
    said = {name: table[name] for name in names if name in table}
    return Arguments(kind, {**start, **said}, parser.line, said=frozenset(said), own=own)


def _value(value: Any) -> Any:
    """A library's argument, whose type its name says: a switch, a number or text."""
    if isinstance(value, str) and value.lower() in _TRUTHS:
        return _TRUTHS[value.lower()]
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    return value
