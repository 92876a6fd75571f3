"""Functions of Python itself that settings are written with, where the text says their arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from planner.configs.programs.values import Unknown, is_known, is_number, joined
from planner.words import words

_NUMBERS: dict[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "len": len,
    "max": max,
    "min": min,
    "abs": abs,
    # To digits nobody rounds a setting, and a few million of them take minutes.
    "round": partial(round, ndigits=None),
}
# Functions of texts: a path is handed on as it is, as far as settings go.
_JOIN = """
    os.path.abspath os.path.expanduser os.path.realpath os.fspath os.path.join pathlib.Path
"""
_OF_TEXTS: dict[str, Callable[[Sequence[str]], Any]] = {
    **dict.fromkeys(words(_JOIN), lambda texts: joined(texts, "/")),
    "distutils.util.strtobool": lambda texts: texts[0].lower() in ("y", "yes", "t", "true", "on", "1"),
}
_SECOND = ("typing.cast",)
_MOST = 10_000


def plain(name: str, placed: Sequence[Any], given: dict[str, Any]) -> tuple[Any] | None:
    """What a function gives; in a tuple, for it may be nothing.  ``None`` where the text does not say."""
    short = name.removeprefix("builtins.")
    if short == "dict" and all(isinstance(each, dict) for each in placed):
        return ({key: value for each in (*placed, given) for key, value in each.items()},)
    if short in ("list", "tuple") and len(placed) == 1 and isinstance(placed[0], list):
        return (list(placed[0]),)
    if name in _SECOND and len(placed) == 2:
        return (placed[1],)
    if placed and all(isinstance(each, str) for each in placed) and name in _OF_TEXTS:
        text = _OF_TEXTS[name](placed)
        return None if text is None else (text,)
    function = _NUMBERS.get(short) if name != short else None
    if function is None or given or not placed or not is_known(list(placed)) or _is_large(placed):
        return None
    try:
        found = function(*placed)
    except (TypeError, ValueError, OverflowError):
        return (Unknown(f"{short}(...)"),)
    return (found if not isinstance(found, int) or is_number(found) else Unknown(f"{short}(...)"),)


def _is_large(placed: Sequence[Any]) -> bool:
    return any(isinstance(each, str | list | dict) and len(each) > _MOST for each in placed)
