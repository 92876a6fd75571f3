"""What the program may do to the machine: read anything, write only to temporary folders, and talk to nobody."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_CHANGES = frozenset({"os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"})
_ALWAYS = ("/dev/", "/proc/")
_LOCAL = ("127.", "::1", "localhost")


def close_in(folder: Path) -> None:
    """From now on this process writes only below ``folder`` and connects only to itself; for good."""
    allowed = str(folder.resolve())

    def may_write(path: Any) -> bool:
        if isinstance(path, int) or path is None:
            return True
        found = os.path.realpath(os.fsdecode(path))
        return found.startswith((f"{allowed}/", *_ALWAYS)) or found == allowed

    def watch(event: str, args: tuple[Any, ...]) -> None:
        check = checks.get(event)
        if check is not None:
            check(args)

    def opened(args: tuple[Any, ...]) -> None:
        path, mode, flags = args
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITES)
        if writes and not may_write(path):
            raise _refused(path)

    def changed(args: tuple[Any, ...]) -> None:
        # A link is made at its second path; all others change the first.
        for path in args[:2] if len(args) > 1 and isinstance(args[1], str | bytes) else args[:1]:
            if not may_write(path):
                raise _refused(path)

    checks: dict[str, Callable[[tuple[Any, ...]], None]] = {"open": opened, "socket.connect": _connected}
    checks |= dict.fromkeys(_CHANGES, changed)
    tempfile.tempdir = None
    sys.addaudithook(watch)


def _refused(path: Any) -> PermissionError:
    return PermissionError(
        f"a dry run writes nothing outside of its temporary folder, but the program wants to write {path!r}: "
        "give it a relative output folder"
    )


def _connected(args: tuple[Any, ...]) -> None:
    address = args[1]
    if isinstance(address, tuple) and not str(address[0]).startswith(_LOCAL):
        raise ConnectionRefusedError(f"a dry run has no network, but the program wants to reach {address[0]}")
