"""Files that appear whole or not at all: written under a temporary name beside the target, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from planner.errors import InputFileError, show

# Of the target, in a temporary name: a name may have 255 bytes,
# and the temporary one is longer than its target.
_NAMED_CHARS = 40


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary stream whose content becomes ``path`` at the end;
    after an error or an interrupt nothing is left behind.

    Raises:
        InputFileError: the file cannot be written.
    """
    target = Path(path)
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "wb", dir=target.parent, prefix=f".{target.name[:_NAMED_CHARS]}.", delete=False
        ) as stream:
            temporary = Path(stream.name)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(target)
    except OSError as error:
        raise InputFileError(target, f"cannot be written: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """Refuse a target that cannot become a file, before any work is done for it.

    Raises:
        InputFileError: its folder does not exist or may not be written to,
        or it is something else than a file.
    """
    target = Path(path)
    folder = target.parent
    try:
        if not folder.is_dir():
            raise InputFileError(target, f"cannot be written: there is no folder '{folder}'")
        if target.exists() and not target.is_file():
            raise InputFileError(target, "cannot be written: it exists and is not a regular file")
    except OSError as error:
        # A name that is too long, or a folder that links to itself.
        raise InputFileError(show(str(target)), f"cannot be written: {error.strerror or error}") from None
    if not os.access(folder, os.W_OK):
        raise InputFileError(target, f"cannot be written: no permission in the folder '{folder}'")


def check_picture(path: str | Path) -> None:
    """As :func:`check_writable`, of a picture, which is never of another kind than its name says.

    Raises:
        InputFileError: the file cannot be written, or the name is that of another kind of file.
    """
    if Path(path).suffix.lower() not in ("", ".png"):
        raise InputFileError(Path(path), "cannot be written: pictures are PNG, so end the name in .png")
    check_writable(path)
