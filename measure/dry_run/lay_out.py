"""Starts what makes the folder of a checkpoint without its weights
(:mod:`measure.dry_run.libraries.files.checkpoint_folder`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_MAKER = "measure.dry_run.libraries.files.checkpoint_folder"


def start(folder: Path, model: str, variables: Mapping[str, str]) -> str:
    """Make the folder in a process of its own; why it could not be made, empty where it was."""
    command = [sys.executable, "-m", _MAKER, str(folder), model]
    output = folder.with_name(f"{folder.name}.said")
    output.parent.mkdir(parents=True, exist_ok=True)
    # Not by ``subprocess``: of a dry run itself, that would run it in the same process.
    with output.open("wb") as file:
        shown = [(os.POSIX_SPAWN_DUP2, file.fileno(), number) for number in (1, 2)]
        number = os.posix_spawn(command[0], command, dict(variables), file_actions=shown)
        code = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    words = output.read_text(encoding="utf-8", errors="replace").strip()
    output.unlink()
    return (words.splitlines() or ["it ended by itself"])[-1] if code else ""
