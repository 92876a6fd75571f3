"""What DeepSpeed compiles on first use: whether this machine can, and locks that a killed compilation left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from importlib.util import find_spec
from pathlib import Path

from measure.processes import worker_environment

# torch makes the lock, starts ninja in the same folder, and removes the lock when ninja is done.
_LOCK = "lock"
_STARTING_S = 20.0


def missing_build_tool() -> str | None:
    """The program that DeepSpeed's Adam for CPUs is built with and that is not here; ``None``: all are, or it is built already.

    Source: DeepSpeed 0.19 ops/op_builder/builder.py jit_load; torch 2.13 utils/cpp_extension.py get_cxx_compiler.
    """
    found = find_spec("deepspeed")
    if found is not None and found.origin is not None and any(Path(found.origin).parent.glob("ops/adam/cpu_adam_op*")):
        return None
    search = worker_environment()["PATH"]
    return next((name for name in (os.environ.get("CXX", "c++"), "ninja") if shutil.which(name, path=search) is None), None)


def extensions_folder() -> Path:
    """Where torch keeps what it compiled.  Source: torch 2.13 utils/cpp_extension.py _get_build_directory."""
    said = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(said) if said else Path(cache) / "torch_extensions"


def remove_abandoned_locks() -> tuple[Path, ...]:
    """Remove locks whose compilation was killed: whoever compiles next would wait for them without end.  Returns them.

    A lock belongs to somebody while it is new or a process works in its folder.
    """
    root = extensions_folder()
    old = [path for path in (*root.glob(f"*/{_LOCK}"), *root.glob(f"*/*/{_LOCK}")) if _age_s(path) > _STARTING_S]
    if not old:
        return ()
    busy = _working_folders()
    abandoned = tuple(path for path in old if path.parent.resolve() not in busy)
    for path in abandoned:
        with contextlib.suppress(OSError):
            path.unlink()
    return abandoned


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _working_folders() -> set[Path]:
    """Folders in which processes of this machine work, as far as they may be known."""
    import psutil

    folders = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            folders.add(Path(process.cwd()))
    return folders
