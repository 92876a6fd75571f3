"""Strict reading of small TOML files: bounded size, one-sentence errors with file and line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from planner.errors import InputFileError
from planner.units import MIB, format_bytes

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

MAX_TOML_BYTES = 1 * MIB
_MAX_ECHO_CHARS = 60
_POSITION = re.compile(r"\s*\(at line (\d+), column \d+\)$")

ModelT = TypeVar("ModelT", bound="BaseModel")


def read_toml(path: Path) -> dict[str, Any]:
    """The table a TOML file holds.

    Raises:
        InputFileError: missing, not a regular file, unreadable, above 1 MiB, not UTF-8, not TOML, or nested too deeply.
    """
    text = _decode(path, _read_bounded(path))
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        position = _POSITION.search(message)
        line = int(position[1]) if position else None
        raise InputFileError(path, f"not valid TOML: {_POSITION.sub('', message)}", line) from error
    except RecursionError as error:
        raise InputFileError(path, "not valid TOML: nested too deeply") from error


def validate(model_class: type[ModelT], data: Mapping[str, Any], path: Path) -> ModelT:
    """``data`` as a ``model_class``; the first thing wrong with it becomes one sentence that names the key.

    Raises:
        InputFileError: a missing, unknown, wrongly typed or out-of-range key.
    """
    from pydantic import ValidationError

    try:
        return model_class.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        raise InputFileError(path, f"{_describe(details[0])}{more}") from error


def _read_bounded(path: Path) -> bytes:
    """Content of a regular file of at most ``MAX_TOML_BYTES``; a pipe or a device is refused before it can block."""
    try:
        if not path.exists():
            raise InputFileError(path, "no such file")
        if not path.is_file():
            raise InputFileError(path, "not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_TOML_BYTES + 1)
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_TOML_BYTES:
        raise InputFileError(path, f"larger than the limit of {format_bytes(MAX_TOML_BYTES)}")
    return content


def _decode(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputFileError(path, "not UTF-8 text", line) from error


def _describe(detail: ErrorDetails) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        return f"missing key '{key}'"
    if detail["type"] == "extra_forbidden":
        return f"unknown key '{key}'"
    message = detail["msg"].removeprefix("Value error, ")
    if not key:
        return message
    given = repr(detail["input"])
    shown = given if len(given) <= _MAX_ECHO_CHARS else given[:_MAX_ECHO_CHARS] + "..."
    return f"key '{key}': {message[:1].lower()}{message[1:]}, but it is {shown}"
