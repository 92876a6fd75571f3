"""The text of a config file that a user names: bounded, regular, UTF-8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from planner.errors import InputFileError, show
from planner.units import MIB, format_bytes

MAX_CONFIG_BYTES = 1 * MIB
_INSTEAD: ContextVar[Mapping[Path, str]] = ContextVar("texts read instead of those of files")


@contextmanager
def reading_instead(texts: Mapping[Path, str]) -> Iterator[None]:
    """Within it, files (by their resolved paths) are read as if they held these texts: what a change would do is asked so."""
    token = _INSTEAD.set(texts)
    try:
        yield
    finally:
        _INSTEAD.reset(token)


def read_text(file: Path, limit_bytes: int = MAX_CONFIG_BYTES) -> str:
    """Text of a regular file of at most ``limit_bytes``; a pipe or a device is refused before it can block.

    Raises:
        InputFileError: missing, not a regular file, unreadable, too large or not UTF-8.
    """
    texts = _INSTEAD.get({})
    if texts and (text := texts.get(file.resolve())) is not None:
        return text
    try:
        if not file.is_file():
            raise InputFileError(file, "not a regular file" if file.exists() else "no such file")
        with file.open("rb") as stream:
            content = stream.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        raise InputFileError(show(str(file)), f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > limit_bytes:
        raise InputFileError(file, f"larger than the limit of {format_bytes(limit_bytes)}")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputFileError(file, "not UTF-8 text", content.count(b"\n", 0, error.start) + 1) from None
