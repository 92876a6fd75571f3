"""Runs a command line in this process: a script, a module, or the command of an installed package."""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

from planner.errors import InputFileError, UsageError
from planner.files.reading import read_bytes
from planner.units import MIB

_INTERPRETERS = ("python", "python3", "pypy")
_WITH_VALUE = ("-X", "-W")
# The commands that pip makes have a few lines.
_MAX_COMMAND_BYTES = MIB


def check_program(command: Sequence[str]) -> None:
    """Refuse a command line that cannot be run here, before anything is started.

    Raises:
        UsageError: there is no such program, it is none of Python's, or it belongs to another environment.
    """
    name = PurePath(command[0]).name
    if name.startswith(_INTERPRETERS):
        rest = _after_interpreter(command)
        if not rest or rest[0] == "-c" or (rest[0] == "-m" and len(rest) < 2):
            raise UsageError("name the script after --: measure trace --gpu 4090 -- python train.py")
        if rest[0] != "-m" and not Path(rest[0]).is_file():
            raise UsageError(f"there is no script '{rest[0]}' here")
    elif name.endswith(".py"):
        if not Path(command[0]).is_file():
            raise UsageError(f"there is no script '{command[0]}' here")
    else:
        _check_command(command[0])


def _check_command(name: str) -> None:
    found = _command_file(name)
    if found is None:
        raise UsageError(
            f"there is no program '{name}' in the environment of measure: install measure in the one that "
            "has it, or name a script: -- python train.py"
        )
    interpreter = _interpreter_of(found)
    if not interpreter:
        raise UsageError(f"'{name}' is no Python program; name the script: -- python train.py")
    # Its libraries would not be the ones that a dry run in this environment finds.
    if (
        Path(interpreter).is_absolute()
        and Path(interpreter).parent.resolve() != Path(sys.executable).parent.resolve()
    ):
        raise UsageError(
            f"'{name}' belongs to the environment of {interpreter}: install measure there, and run "
            "it from there"
        )


def _command_file(name: str) -> Path | None:
    """An installed command: the one beside this interpreter before all others."""
    beside = Path(sys.executable).parent / name
    if "/" not in name and beside.is_file():
        return beside
    found = shutil.which(name)
    return None if found is None else Path(found)


def _interpreter_of(path: Path) -> str:
    """The Python that an installed command names in its first line,
    or in its second where the path is long; empty for none.
    """
    try:
        lines = read_bytes(path, _MAX_COMMAND_BYTES).splitlines()[:2]
    except InputFileError:
        return ""
    words = next((line for line in lines if b"python" in line), b"").decode(errors="replace").split()
    return next((word.strip("#!\"'") for word in words if "python" in word), "")


def is_python_program(words: Sequence[str]) -> bool:
    """Whether a command line starts a script, a module or an installed command of Python,
    and no line of code.
    """
    name = PurePath(words[0]).name
    if name.startswith(_INTERPRETERS):
        rest = _after_interpreter(words)
        return bool(rest) and rest[0] != "-c"
    if name.endswith(".py"):
        return True
    found = _command_file(words[0])
    return found is not None and bool(_interpreter_of(found))


def _after_interpreter(words: Sequence[str]) -> list[str]:
    """A script, ``-m`` or ``-c`` with all behind it:
    the command line without the interpreter and its flags.
    """
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2:] if rest[0] in _WITH_VALUE else rest[1:]
    return rest


def run_program(command: Sequence[str]) -> None:
    """Run ``command`` as if it were started by itself; whatever it raises comes out."""
    words = list(command)
    if PurePath(words[0]).name.startswith(_INTERPRETERS):
        words = _after_interpreter(words)
    elif not words[0].endswith(".py"):
        words[0] = str(_command_file(words[0]) or words[0])
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    runpy.run_path(words[0], run_name="__main__")
