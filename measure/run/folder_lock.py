"""One campaign at a time in a folder of records: two would measure everything twice,
and on one card each other.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from planner.errors import UsageError
from planner.records.locking import lock

LOCK_FILE = ".lock"
_MAX_HOLDER_BYTES = 300
Say = Callable[[str], None]


@contextmanager
def folder_lock(folder: Path, *, share: str | None = None, wait: bool = False, say: Say) -> Iterator[None]:
    """Keep other campaigns out of ``folder`` until the end or the death of this process,
    on this machine and on others.

    Campaigns of different shares may work in one folder, because their cases are different.  So each of them
    locks the folder together with others and its share alone; a campaign of all cases locks the folder alone.

    Args:
        folder: exists and can be written.
        share: such as ``2/4``; ``None``: all cases.
        wait: for who holds it, instead of being refused.
        say: told what there is to wait for, and where nothing can be locked.

    Raises:
        UsageError: another campaign works there, which is named; or the lock file cannot be used.
    """
    own = f"process {os.getpid()} on {platform.node()}, since {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    with ExitStack() as held:
        _hold(folder / LOCK_FILE, held, own, shared=share is not None, wait=wait, say=say)
        if share is not None:
            name = f"{LOCK_FILE}-{share.replace('/', '-of-')}"
            _hold(folder / name, held, own, shared=False, wait=wait, say=say)
        yield


def _hold(path: Path, held: ExitStack, own: str, *, shared: bool, wait: bool, say: Say) -> None:
    """Lock the file of ``path`` as long as ``held`` is open, and write into it who does,
    where that is one.
    """
    try:
        # Both ways, because NFS needs it; not emptied, because it names who holds it.
        stream = held.enter_context(path.open("a+b", buffering=0))
        locked = lock(stream, shared=shared)
        if locked is False:
            busy = f"another campaign works in '{path.parent}': {_holder(path)}"
            if not wait:
                raise UsageError(f"{busy}; --wait waits for its end, or give another --out")
            say(f"{busy}; waiting for its end")
            locked = lock(stream, shared=shared, wait=True)
        if locked is None:
            say(
                f"the disk of '{path.parent}' has no locks: nothing keeps a second campaign from measuring "
                "the same there"
            )
            return
        # What is written there is by one who died.
        stream.truncate(0)
        if not shared:
            stream.write(own.encode())
            held.callback(_empty, stream)
    except OSError as error:
        raise UsageError(
            f"'{path}' cannot be locked: {error.strerror or error}; give another --out"
        ) from None


def _empty(stream: IO[bytes]) -> None:
    with suppress(OSError):
        stream.truncate(0)


def _holder(path: Path) -> str:
    """Who holds the lock, in that process's own words; of a folder that shares hold together,
    the first of them.
    """
    for each in (path, *sorted(path.parent.glob(f"{LOCK_FILE}-*"))):
        with each.open("a+b", buffering=0) as stream:
            if lock(stream, shared=True) is False:
                stream.seek(0)
                if name := stream.read(_MAX_HOLDER_BYTES):
                    return "".join(
                        char if char.isprintable() else "?" for char in name.decode(errors="replace")
                    )
    return "which has not said yet who it is"
