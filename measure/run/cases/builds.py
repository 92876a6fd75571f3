"""What DeepSpeed compiles on first use: whether this machine can,
and locks that a killed compilation left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from importlib.util import find_spec
from pathlib import Path

from measure.run.processes import worker_environment

# torch makes the lock, starts ninja in the same folder, and removes the lock when ninja is done.
_LOCK = "lock"
_STARTING_S = 20.0
# A file of DeepSpeed's is compiled in about a minute; processes of other machines cannot be seen,
# only that nothing changes.
_QUIET_S = 900.0
_OWN_DISKS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "apfs"}
)


def missing_build_tool() -> str | None:
    """The program that DeepSpeed's Adam for CPUs is built with and that is not here; ``None``: all are,
    or it is built already.

    Source: DeepSpeed 0.19 ops/op_builder/builder.py jit_load;
    torch 2.13 utils/cpp_extension.py get_cxx_compiler.
    """
    found = find_spec("deepspeed")
    if (
        found is not None
        and found.origin is not None
        and any(Path(found.origin).parent.glob("ops/adam/cpu_adam_op*"))
    ):
        return None
    search = worker_environment()["PATH"]
    return next(
        (name for name in (os.environ.get("CXX", "c++"), "ninja") if shutil.which(name, path=search) is None),
        None,
    )


def extensions_folder() -> Path:
    """Where torch keeps what it compiled.  Source: torch 2.13 utils/cpp_extension.py _get_build_directory."""
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(given) if given else Path(cache) / "torch_extensions"


def remove_abandoned_locks() -> tuple[Path, ...]:
    """Remove locks whose compilation was killed:
    whoever compiles next would wait for them without end.  Returns them.

    A lock belongs to somebody while it is new or a process works in its folder.  Other machines may see the
    folder (a home on a cluster), and other containers.  There a lock also belongs to somebody until nothing
    in its folder has changed for a quarter of an hour.
    """
    root = extensions_folder()
    old = [
        path for path in (*root.glob(f"*/{_LOCK}"), *root.glob(f"*/*/{_LOCK}")) if _age_s(path) > _STARTING_S
    ]
    if not old:
        return ()
    busy, shared = _working_folders(), _may_be_shared(root)
    abandoned = tuple(
        path for path in old if path.parent.resolve() not in busy and not (shared and _changed(path.parent))
    )
    for path in abandoned:
        with contextlib.suppress(OSError):
            path.unlink()
    return abandoned


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _changed(folder: Path) -> bool:
    """Whether anything in ``folder`` has changed lately."""
    try:
        return any(_age_s(path) < _QUIET_S for path in (folder, *folder.iterdir()))
    except OSError:
        return True


def _may_be_shared(folder: Path) -> bool:
    """Whether processes that cannot be seen from here may work in ``folder``: on a disk of a network,
    or lent to a container.
    """
    import psutil

    disks = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    place = next((each for each in (folder.resolve(), *folder.resolve().parents) if each in disks), None)
    if place == Path("/"):
        return disks[place].startswith("nfs")
    if place is None or disks[place] not in _OWN_DISKS:
        return True
    # The root of a container lies on an overlay; what is not below it came from outside.
    return disks.get(Path("/")) == "overlay" and disks[place] not in {"overlay", "tmpfs"}


def _working_folders() -> set[Path]:
    """Folders in which processes of this machine work, as far as they may be known."""
    import psutil

    folders = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            folders.add(Path(process.cwd()))
    return folders
