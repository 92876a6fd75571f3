"""Prints the path of the ``oldest`` or ``newest`` Python on this machine that pyproject.toml supports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_NAME = re.compile(r"python3(\.\d+)?")
# Pre-releases are left out, because packages have no wheels for them yet,
# and so are those that cannot make an environment.
_ASK = "import ensurepip, sys, venv; v = sys.version_info; print(*v[:3] if v[3] == 'final' else '')"

Version = tuple[int, ...]


def candidates(search: Iterable[Path]) -> set[Path]:
    """Programs called ``python3`` or ``python3.N`` in the folders ``search``, each once."""
    found = (path for folder in search if folder.is_dir() for path in folder.iterdir())
    return {path.resolve() for path in found if _NAME.fullmatch(path.name) and os.access(path, os.X_OK)}


def version_of(program: Path) -> Version:
    """The version that ``program`` says it is; empty where it is not fit for use."""
    done = subprocess.run([program, "-c", _ASK], capture_output=True, text=True, check=False)
    return tuple(int(part) for part in done.stdout.split()) if done.returncode == 0 else ()


def supported(search: Iterable[Path]) -> list[Path]:
    """Interpreters of the folders ``search`` that may run the project, the oldest first."""
    requires = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["requires-python"]
    least = tuple(int(part) for part in requires.removeprefix(">=").split("."))
    versions = {program: version_of(program) for program in candidates(search)}
    return sorted(
        (each for each in versions if versions[each] >= least),
        key=lambda program: (versions[program], program),
    )


def main(which: str) -> int:
    """Looks on the path and in pyenv's folder."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = (Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder)
    found = supported((*on_path, *pyenv.glob("versions/*/bin")))
    if not found:
        sys.stderr.write("no supported Python was found; name one by LOWEST_PYTHON= and NEWEST_PYTHON=\n")
        return 1
    sys.stdout.write(f"{found[{'oldest': 0, 'newest': -1}[which]]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
