"""What the program may do to the machine: read anything, write only to temporary folders,
and talk to nobody.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from measure.dry_run.guesses import Guesses, not_here
from planner.units import MIB

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_CHANGES = frozenset(
    {
        "os.mkdir",
        "os.rmdir",
        "os.remove",
        "os.rename",
        "os.link",
        "os.symlink",
        "os.truncate",
        "shutil.rmtree",
    }
)
_ALWAYS = ("/dev/", "/proc/")
_LOCAL = ("127.", "::1", "localhost", socket.gethostname())
_MOST_LINKS = 20_000
_MOST_COPIED_BYTES = MIB


def view_of(folder: Path, work: Path) -> Path:
    """A folder ``work`` that shows the files of ``folder``: links in folders of its own,
    so that new files are made there.

    Hidden folders, and what is left after 20,000 files, are links as a whole.  Python files are copies: many
    programs write beside the place that their own file really has.
    """
    work.mkdir()
    _fill([(folder, work)], _MOST_LINKS)
    return work


def top_of(folder: Path) -> Path:
    """The highest folder that a program started in ``folder`` has a view of: its repository's; without one,
    the folder above, but never the root of the disk.
    """
    for each in (folder, *folder.parents):
        if (each / ".git").exists():
            return each
    return folder if folder.parent == Path(folder.anchor) else folder.parent


def view_with_neighbours(folder: Path, view: Path) -> Path:
    """What ``folder`` is called in a ``view`` of all below its :func:`top_of`, so that ``..`` leads to the
    same files.  Neighbours of a folder without a repository are links as a whole.
    """
    top = top_of(folder)
    work = view / folder.relative_to(top)
    work.mkdir(parents=True)
    above = [(each, view / each.relative_to(top)) for each in folder.parents if each.is_relative_to(top)]
    _fill([(folder, work)], _MOST_LINKS)
    _fill(above[::-1], _MOST_LINKS if (top / ".git").exists() else 0)
    return work


def _fill(waiting: list[tuple[Path, Path]], most_links: int) -> None:
    """Show what is in each first folder in the second, and below it, the last pair first.
    What is there already stays.
    """
    left = most_links
    while waiting:
        source, target = waiting.pop()
        for each in _entries(source):
            left -= 1
            shown = target / each.name
            if shown.exists():
                continue
            if (
                each.is_dir(follow_symlinks=False)
                and not each.name.startswith(".")
                and left > 0
                and Path(each.path) not in target.parents
            ):
                shown.mkdir()
                waiting.append((Path(each.path), shown))
            elif each.name.endswith(".py") and each.is_file() and each.stat().st_size < _MOST_COPIED_BYTES:
                shutil.copyfile(each.path, shown)
            else:
                shown.symlink_to(each.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing in one that is gone by now, or that the program could not read either."""
    try:
        return list(os.scandir(folder))
    except (FileNotFoundError, PermissionError):
        return []


class Walls:
    """Refuses what would change anything outside of ``folder``.
    A link below it gives way to a new file when it is written.
    """

    def __init__(self, folder: Path) -> None:
        self._inside = f"{folder.resolve()}/"

    def check_open(self, args: tuple[Any, ...]) -> None:
        """A file is opened."""
        path, mode, flags = args
        if isinstance(path, int) or path is None:
            return
        writes = (
            any(letter in mode for letter in "wax+")
            if isinstance(mode, str)
            else bool((flags or 0) & _WRITES)
        )
        if not writes or self._is_inside(os.path.realpath(os.fsdecode(path))):
            return
        if not self._is_own_link(path):
            raise _refused(path)
        target = Path(os.fsdecode(path))
        content = (
            target.read_bytes() if isinstance(mode, str) and "w" not in mode and target.is_file() else None
        )
        target.unlink()
        if content is not None:
            target.write_bytes(content)

    def check_change(self, args: tuple[Any, ...]) -> None:
        """A name is made, moved or taken away.  A link is made at its second path;
        all others change the first.
        """
        for path in (
            args[:2] if len(args) > 1 and isinstance(args[1], str | bytes | os.PathLike) else args[:1]
        ):
            if not isinstance(path, int) and not self._is_own_link(path):
                raise _refused(path)

    def _is_own_link(self, path: Any) -> bool:
        """Whether the name itself, wherever it leads, lies below the folder."""
        text = os.fsdecode(path)
        # Not pathlib's: this is any path-like value, in a hook that runs often.
        parent = os.path.realpath(os.path.dirname(text) or ".")  # noqa: PTH120
        return self._is_inside(f"{parent}/{os.path.basename(text)}")  # noqa: PTH119

    def _is_inside(self, path: str) -> bool:
        return f"{path}/".startswith((self._inside, *_ALWAYS))


def close_in(folder: Path, guesses: Guesses) -> None:
    """From now on this process writes only below ``folder`` and connects only to itself; for good."""
    walls = Walls(folder)
    connect = partial(_connected, guesses)
    checks: dict[str, Callable[[tuple[Any, ...]], None]] = {
        "open": walls.check_open,
        "socket.connect": lambda args: connect(args[1]),
        "socket.getaddrinfo": connect,
    }
    checks |= dict.fromkeys(_CHANGES, walls.check_change)

    def watch(event: str, args: tuple[Any, ...]) -> None:
        check = checks.get(event)
        if check is not None:
            check(args)

    tempfile.tempdir = None
    sys.addaudithook(watch)


def _refused(path: Any) -> PermissionError:
    return PermissionError(
        "a dry run writes nothing outside of its temporary folder, but the program wants to write "
        f"{os.fsdecode(path)!r}: give it a relative output folder"
    )


def _connected(guesses: Guesses, address: Any) -> None:
    """An address is reached, or its name looked up, for which others would be asked.  A program may go on
    without an answer, so it is noted.
    """
    host = address[0] if isinstance(address, tuple) else None
    if host and not os.fsdecode(host).startswith(_LOCAL):
        guesses.assume("the network", "refused; the program may run otherwise", os.fsdecode(host))
        raise not_here(
            ConnectionRefusedError,
            f"a dry run has no network, but the program wants to reach {os.fsdecode(host)}: put what it asks "
            "for where it looks first",
        )
