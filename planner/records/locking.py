"""Locks of files.  The system ends them with the process that holds them, however it dies,
so none is ever left behind.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows has no flock; nothing there measures
    fcntl = None  # type: ignore[assignment]

_HELD_BY_ANOTHER = frozenset({errno.EAGAIN, errno.EACCES})
# flock(2) and nfs(5): a file system without locks, an NFS server whose lock daemon is off,
# Lustre mounted without -o flock.
_NO_LOCKS_HERE = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL})


def lock(stream: IO[Any], *, shared: bool = False, wait: bool = False) -> bool | None:
    """Lock the open file of ``stream`` until it is closed: ``True`` held,
    ``False`` another holds it, ``None`` no locks here.

    Over NFS it holds against other machines too: Linux asks the server for a lock of the whole file, which
    needs a stream that reads and writes.

    Args:
        stream: an open file; children that are started by ``subprocess`` do not inherit it.
        shared: others may hold it shared too.
        wait: until nobody else holds it, so never ``False``.

    Raises:
        OSError: the file cannot be locked for another reason.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(
            stream.fileno(), (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        )
    except OSError as error:
        if error.errno in _NO_LOCKS_HERE:
            return None
        if error.errno in _HELD_BY_ANOTHER and not wait:
            return False
        raise
    return True


@contextmanager
def locked(stream: IO[Any]) -> Iterator[None]:
    """Hold the file of ``stream`` alone for a moment, waiting for whoever holds it;
    without a lock where there are none.

    Raises:
        OSError: the file cannot be locked.
    """
    held = lock(stream, wait=True)
    try:
        yield
    finally:
        if held and fcntl is not None:
            fcntl.flock(stream.fileno(), fcntl.LOCK_UN)
