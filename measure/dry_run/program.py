"""Runs a command line in this process: a script, a module, or the command of an installed package."""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

from planner.errors import InputFileError, NotModelledError, UsageError
from planner.files.reading import read_bytes
from planner.units import MIB

_INTERPRETERS = ("python", "python3", "pypy")
# The commands that pip makes have a few lines.
_MAX_COMMAND_BYTES = MIB
_SEVERAL = ("torchrun", "accelerate", "deepspeed", "mpirun", "srun")


def check_program(command: Sequence[str]) -> None:
    """Refuse a command line that cannot be run here, before anything is started.

    Raises:
        UsageError: there is no such program.
        NotModelledError: one that starts other processes.
    """
    name = PurePath(command[0]).name
    if name in _SEVERAL or (
        name.startswith(_INTERPRETERS) and command[1:3] in (["-m", "torch.distributed.run"], ["-m", "accelerate.commands.launch"])
    ):
        raise NotModelledError(f"'{name}' starts processes of its own, which a dry run cannot follow yet; name the script itself")
    if name.startswith(_INTERPRETERS):
        rest = [each for each in command[1:] if not each.startswith("-") or each in ("-m", "-c")]
        if not rest or (rest[0] == "-c") or (rest[0] == "-m" and len(rest) < 2):
            raise UsageError("name the script after --: measure trace --gpu 4090 -- python train.py")
        if rest[0] != "-m" and not Path(rest[0]).is_file():
            raise UsageError(f"there is no script '{rest[0]}' here")
    elif not name.endswith(".py") and shutil.which(command[0]) is None:
        raise UsageError(f"there is no program '{command[0]}' here; for a script: -- python train.py")
    elif not name.endswith(".py") and not _is_python(Path(shutil.which(command[0]) or "")):
        raise UsageError(f"'{command[0]}' is no Python program; name the script: -- python train.py")
    elif name.endswith(".py") and not Path(command[0]).is_file():
        raise UsageError(f"there is no script '{command[0]}' here")


def _is_python(path: Path) -> bool:
    """Whether the first line of an installed command names Python."""
    try:
        return b"python" in read_bytes(path, _MAX_COMMAND_BYTES).partition(b"\n")[0]
    except InputFileError:
        return False


def run_program(command: Sequence[str]) -> None:
    """Run ``command`` as if it were started by itself; whatever it raises comes out."""
    words = list(command)
    if PurePath(words[0]).name.startswith(_INTERPRETERS):
        words = words[1:]
        while words[0].startswith("-") and words[0] != "-m":
            words = words[1:]
    elif not words[0].endswith(".py"):
        words[0] = shutil.which(words[0]) or words[0]
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    runpy.run_path(words[0], run_name="__main__")
