"""One thing that a user can say about a job: its name, what it may be, and how text becomes its value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from planner.errors import UnknownNameError, UsageError, show
from planner.units import KILO, MEGA, format_bytes, parse_size_bytes

Kind = Literal["text", "choice", "integer", "number", "size", "flag", "names"]

Part = Literal["model", "hardware", "recipe"]
"""The parts of a job.  A file of a trainer or a campaign says model and recipe;
what is measured here has its hardware.
"""
PARTS: tuple[Part, ...] = get_args(Part)

MAX_TEXT_CHARS = 1_000
MAX_NAMES = 1_000
# Without zeros in front: 096 is what a comma left of 4,096.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,29})")
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(,[0-9]{3})+")
_NUMBER = re.compile(r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,4})?")
_TOKENS = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s?([km])")
_TOKEN_UNITS = {"k": 1_024, "m": 1_048_576}
_KINDS_OF_CHECKPOINTING = ("full", "selective", "selective-op", "selective-layer")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class RequestField:
    """One thing a user can say.

    ``name`` is the TOML key, and with hyphens the flag.  ``low`` and ``high`` are the allowed range, in bytes
    for a ``size``; ``low`` itself is excluded when ``above_low``, ``high`` when ``below_high``.  A ``names``
    value is a list with ``;`` or ``,``.  ``spellings``: names in libraries, with their choice.
    ``elsewhere``: words that people say here, with the flags that mean it.
    ``of_tokens``: text may end in k (1,024) or m (1,048,576), as context lengths are written.
    ``needed_for``: the part of a job that cannot be settled without this field, because it has no default;
    ``or_else`` is a field that says enough in its place.  ``other_column``: its name in records and
    documents, where that is another.
    """

    name: str
    kind: Kind
    help: str
    choices: tuple[str, ...] = ()
    spellings: tuple[tuple[str, str], ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()
    low: float | None = None
    high: float | None = None
    above_low: bool = False
    below_high: bool = False
    on_command_line: bool = True
    of_tokens: bool = False
    needed_for: Part | None = None
    or_else: str = ""
    other_column: str = ""

    @property
    def flag(self) -> str:
        """The command-line spelling."""
        return "--" + self.name.replace("_", "-")

    @property
    def column(self) -> str:
        """Its name in records and documents."""
        return self.other_column or self.name

    @property
    def range_text(self) -> str:
        """The allowed range in words."""
        low, high = (self._limit(limit) for limit in (self.low, self.high))
        if not self.above_low:
            return f"from {low} {'to below' if self.below_high else 'to'} {high}"
        return f"above {low} and {'below' if self.below_high else 'at most'} {high}"

    def parse(self, value: object) -> Any:
        """``value`` (text, or what TOML and records hold) in the type that the rest of the program uses.

        Returns:
            ``str`` for text and choice, ``int`` for integer and size (bytes), ``float`` for number, ``bool``
            for flag, a tuple of ``str`` for names.

        Raises:
            UnknownNameError: not one of the choices; lists the nearest.
            UsageError: wrong type, not finite, or out of range; gives the allowed range.
        """
        return _PARSERS[self.kind](self, value)

    def _limit(self, limit: float | None) -> str:
        if limit is None:
            return "any"
        return format_bytes(limit) if self.kind == "size" else f"{limit:,}"


def _text(field: RequestField, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{field.name} must be text, but it is {show(value)}")
    text = value.strip()
    if not text or len(text) > MAX_TEXT_CHARS or not text.isprintable():
        raise UsageError(
            f"{field.name} must be 1 to {MAX_TEXT_CHARS} printable characters, but it is '{show(value)}'"
        )
    return text


def _name(field: RequestField, value: object) -> str:
    """Text, where a name may be a number that TOML does not quote (``gpu = 4090``)."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64
    return _text(field, str(value) if is_number else value)


def _refuse_several(field: RequestField, value: object) -> None:
    """A comma parts thousands, or the choices of a search; either way it is no single value."""
    if not isinstance(value, str) or "," not in value:
        return
    one = f"write {value.replace(',', '')}; " if _THOUSANDS.fullmatch(value.strip()) else ""
    several = f"{one}plan search compares several values"
    raise UsageError(f"{field.name} is one value, but '{show(value)}' has a comma: {several}")


def _choice(field: RequestField, value: object) -> str:
    text = _text(field, value)
    _refuse_several(field, text)
    folded = _fold(text)
    for choice in field.choices:
        if _fold(choice) == folded:
            return choice
    for spelling, choice in field.spellings:
        if _fold(spelling) == folded:
            return choice
    for word, flags in field.elsewhere:
        if word == folded:
            raise UsageError(f"{field.flag} {show(text)}: use {flags}")
    raise UnknownNameError(field.name, show(text), field.choices, hint=f"allowed: {', '.join(field.choices)}")


def _integer(field: RequestField, value: object) -> int:
    number: int | float | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    elif isinstance(value, str) and _INTEGER.fullmatch(value.strip().replace("_", "")):
        number = int(value.strip().replace("_", ""))
    elif field.of_tokens and (tokens := _tokens(value)) is not None and tokens.is_integer():
        number = tokens
    if number is None or not _in_range(field, number):
        _refuse_several(field, value)
        raise _out_of_range(field, value, "a whole number")
    return int(number)


def _number(field: RequestField, value: object) -> float:
    number = math.nan
    if isinstance(value, str):
        text = value.strip()
        tokens = _tokens(text) if field.of_tokens else None
        number = float(text) if _NUMBER.fullmatch(text) else number if tokens is None else tokens
    elif isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 1000
    ):
        number = float(value)
    if not math.isfinite(number) or not _in_range(field, number):
        _refuse_several(field, value)
        raise _out_of_range(field, value, "a number")
    return number


def _tokens(value: object) -> float | None:
    """Tokens of ``4k``, ``8 K`` or ``1m``; ``None`` where it is not written so."""
    match = _TOKENS.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    return None if match is None else float(match[1]) * _TOKEN_UNITS[match[2]]


def _size(field: RequestField, value: object) -> int:
    if not isinstance(value, str):
        raise UsageError(
            f"{field.name} must be a size with a unit such as 24GiB or 80GB, but it is {show(value)}"
        )
    try:
        size = parse_size_bytes(value[:MAX_TEXT_CHARS])
    except ValueError:
        raise UsageError(
            f"{field.name} must be a size with a unit such as 24GiB or 80GB, but it is '{show(value)}'"
        ) from None
    except OverflowError:
        raise _out_of_range(field, value, "a size") from None
    if not _in_range(field, size):
        raise _out_of_range(field, value, "a size")
    return size


def _flag(field: RequestField, value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if field.name == "gradient_checkpointing" and text in _KINDS_OF_CHECKPOINTING:
        raise UsageError(
            "gradient_checkpointing is true or false: for one that keeps operators add "
            "checkpoint_policy=selective-op, for the input alone checkpoint_policy=full, for some layers "
            "checkpoint_every=2"
        )
    raise UsageError(f"{field.name} must be true or false, but it is '{show(value)}'")


def _names(field: RequestField, value: object) -> tuple[str, ...]:
    parts = re.split(r"[;,]", value) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) > MAX_NAMES:
        raise UsageError(
            f"{field.name} must be up to {MAX_NAMES:,} names separated by ';', but it is {show(value)}"
        )
    names = tuple(dict.fromkeys(_text(field, part) for part in parts))
    if not names:
        raise UsageError(f"{field.name} must hold at least one name; leave it out to say nothing")
    return names


def _in_range(field: RequestField, number: float) -> bool:
    low, high = field.low, field.high
    if low is not None and (number <= low if field.above_low else number < low):
        return False
    return high is None or (number < high if field.below_high else number <= high)


def _out_of_range(field: RequestField, value: object, noun: str) -> UsageError:
    hint = " (4k is 4,096, 1m is 1,048,576)" if field.of_tokens and isinstance(value, str) else ""
    if not field.of_tokens and (short := _TOKENS.fullmatch(str(value).lower())):
        # Of tokens a k is 1,024; of anything else nobody may take it for that.
        hint = f": write {float(short[1]) * {'k': KILO, 'm': MEGA}[short[2]]:.0f}"
    return UsageError(f"{field.name} must be {noun} {field.range_text}, but it is {show(value)}{hint}")


def _fold(name: str) -> str:
    return name.lower().replace("_", "-")


_PARSERS = {
    "text": _name,
    "choice": _choice,
    "integer": _integer,
    "number": _number,
    "size": _size,
    "flag": _flag,
    "names": _names,
}
