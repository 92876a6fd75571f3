"""The temporary folder of a case, and the removal of those whose owner was killed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.records.locking import lock

_PREFIX = "measure-"
_OWNER_FILE = "owner"
# Between the making of a folder and the lock of its owner.
_STARTING_S = 60.0


@contextmanager
def case_folder() -> Iterator[Path]:
    """A temporary folder for everything that a case writes.  Its owner locks a file in it,
    and so is known to live.
    """
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        with (folder / _OWNER_FILE).open("a+b") as owner:
            lock(owner)
            yield folder


def remove_abandoned_folders() -> tuple[Path, ...]:
    """Remove the folders of this user's cases whose owner has died; returns them.

    The lock says who lives, not a process id: ids are used again,
    and other containers that share the folder count their own.
    """
    found = sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
    return tuple(folder for folder in found if _remove_if_abandoned(folder))


def _remove_if_abandoned(folder: Path) -> bool:
    owner = folder / _OWNER_FILE
    try:
        status = folder.lstat()
        ours = (
            stat.S_ISDIR(status.st_mode)
            and status.st_uid == os.getuid()
            and stat.S_ISREG(owner.lstat().st_mode)
        )
        if not ours or time.time() - status.st_mtime < _STARTING_S:
            return False
        with owner.open("r+b") as stream:
            # Where there are no locks, nobody can be known to be dead.
            if lock(stream) is not True:
                return False
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    return not folder.exists()
