"""Bytes, text and lines of files that somebody names: regular files only, and counted while they are read.

No other place opens such a file (``tests/architecture/test_files.py``).  Sizes are bounded while reading,
also where gzip unpacks.  So a link to ``/dev/zero``, a pipe or a small file of a billion blanks ends in one
sentence.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from planner.errors import InputFileError, show
from planner.units import KIB, MIB, format_bytes

MAX_CONFIG_BYTES = 1 * MIB
_CHUNK_BYTES = 64 * KIB
# Without waiting for the other end of a pipe, without making a terminal one's own;
# flags that the system has not are 0.
_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")
)
# Deflate with the header and the checksum of gzip (zlib.h, inflateInit2: 16 and the window's 15 bits).
_GZIP_BITS = 31
_BYTE_ORDER_MARK = "\ufeff"
_INSTEAD: ContextVar[Mapping[Path, str]] = ContextVar("texts read instead of those of files")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that is read of a file of lines: bytes of the whole (unpacked, too),
    bytes of one line, lines.
    """

    n_bytes: int
    line_bytes: int
    n_lines: int


@contextmanager
def reading_instead(texts: Mapping[Path, str]) -> Iterator[None]:
    """Within it, files (by their resolved paths) are read as if they held these texts:
    what a change would do is asked so.
    """
    token = _INSTEAD.set({**_INSTEAD.get({}), **texts})
    try:
        yield
    finally:
        _INSTEAD.reset(token)


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """Content of a regular file of at most ``limit_bytes``.

    Raises:
        InputFileError: missing, not a regular file, unreadable or too large.
    """
    found = bytearray()
    with _opened(path) as stream:
        while chunk := stream.read(min(_CHUNK_BYTES, limit_bytes + 1 - len(found))):
            found += chunk
            if len(found) > limit_bytes:
                raise _too_large(path, limit_bytes)
    return bytes(found)


def read_text(path: Path, limit_bytes: int = MAX_CONFIG_BYTES) -> str:
    """Text of a regular file of at most ``limit_bytes``,
    without the mark that some editors write before UTF-8.

    Raises:
        InputFileError: as :func:`read_bytes`, or not UTF-8.
    """
    texts = _INSTEAD.get({})
    if texts and (text := texts.get(path.resolve())) is not None:
        return text
    return decoded(path, read_bytes(path, limit_bytes))


def decoded(path: str | Path, content: bytes) -> str:
    """``content`` of the file ``path`` as text.

    Raises:
        InputFileError: not UTF-8; names the line.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        # What > of Windows PowerShell writes.
        raise InputFileError(path, "UTF-16 text: save it as UTF-8")
    try:
        return content.decode("utf-8").removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise InputFileError(path, "not UTF-8 text", content.count(b"\n", 0, error.start) + 1) from None


def read_lines(path: Path, bounds: Bounds, *, packed: bool = False) -> Iterator[bytes]:
    """Lines of a regular file without their ends, one by one; ``packed``: of what gzip unpacks.

    Raises:
        InputFileError: as :func:`read_bytes`, more than ``bounds`` allow (with the line),
        or not one whole gzip stream.
    """
    with _opened(path) as stream:
        chunks = _counted(path, iter(lambda: stream.read(_CHUNK_BYTES), b""), bounds.n_bytes)
        if packed:
            chunks = _counted(path, _unpacked(path, chunks), bounds.n_bytes)
        yield from _lines(path, chunks, bounds)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, open.  It is looked at before, because opening a device can do something,
    and after, when none can swap it.

    Errors of the system while it is read are those of the file, too.
    """
    try:
        _refuse_irregular(path, path.stat())
        with os.fdopen(os.open(path, _FLAGS), "rb", buffering=0) as stream:
            _refuse_irregular(path, os.fstat(stream.fileno()))
            yield stream
    except FileNotFoundError:
        raise InputFileError(path, "no such file") from None
    except (OSError, ValueError) as error:
        # ValueError: a NUL in the name.
        raise InputFileError(
            show(str(path)), f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None


def _refuse_irregular(path: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        if (path / "config.json").is_file():
            raise InputFileError(path, f"the folder of a model: give it as --model {show(str(path))}")
        raise InputFileError(path, "a folder, not a regular file: name its files, such as FOLDER/*.yaml")
    if not stat.S_ISREG(found.st_mode):
        raise InputFileError(path, "not a regular file")


def _too_large(path: Path, limit_bytes: int) -> InputFileError:
    return InputFileError(path, f"larger than the limit of {format_bytes(limit_bytes)}")


def _counted(path: Path, chunks: Iterable[bytes], limit_bytes: int) -> Iterator[bytes]:
    seen = 0
    for chunk in chunks:
        seen += len(chunk)
        if seen > limit_bytes:
            raise _too_large(path, limit_bytes)
        yield chunk


def _unpacked(path: Path, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """What gzip unpacks, in pieces of bounded size.  One stream is read:
    of many empty ones nothing would ever be counted.
    """
    import zlib

    unpacker = zlib.decompressobj(_GZIP_BITS)
    try:
        for chunk in chunks:
            left = chunk
            while left and not unpacker.eof:
                yield unpacker.decompress(left, _CHUNK_BYTES)
                left = unpacker.unconsumed_tail
            if unpacker.unused_data or (left and unpacker.eof):
                raise InputFileError(path, "holds more after the end of what gzip packed")
    except zlib.error:
        raise InputFileError(path, "not gzip, or damaged") from None
    if not unpacker.eof:
        raise InputFileError(path, "cut short: the end of what gzip packed is missing")


def _lines(path: Path, chunks: Iterable[bytes], bounds: Bounds) -> Iterator[bytes]:
    rest, number = b"", 0
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            yield _within(path, line, number, bounds)
        if rest:
            _within(path, rest, number + 1, bounds)
    if rest:
        yield rest


def _within(path: Path, line: bytes, number: int, bounds: Bounds) -> bytes:
    if number > bounds.n_lines:
        raise InputFileError(path, f"more than {bounds.n_lines:,} lines", number)
    if len(line) > bounds.line_bytes:
        raise InputFileError(path, f"a line of more than {format_bytes(bounds.line_bytes)}", number)
    return line
