"""A wheelhouse for a machine without a network: everything that measuring needs, for a given Python and platform."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import UsageError

_PROJECT = Path(__file__).resolve().parents[1]
_EXTRA = "measure"
# Wheels of one platform carry several tags; pip takes each as written.
_GLIBC = ("2_17", "2_24", "2_27", "2_28", "2_31", "2_34", "2_35")


@dataclass(frozen=True, slots=True)
class Target:
    """What the wheels are for: a Python such as ``3.12`` and a machine such as ``x86_64``."""

    python: str
    machine: str

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags that run there."""
        return (*(f"manylinux_{version}_{self.machine}" for version in _GLIBC), f"manylinux2014_{self.machine}")


def requirements(without: Sequence[str] = ()) -> list[str]:
    """What the package and its measure extra ask for, less the packages that are there already.

    Raises:
        UsageError: not run from a checkout, where the project file is.
    """
    file = _PROJECT / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    except OSError:
        raise UsageError("measure bundle needs a checkout of the project, where pyproject.toml is") from None
    wanted = [*project["dependencies"], *project["optional-dependencies"][_EXTRA]]
    return [each for each in wanted if _name(each) not in {name.lower() for name in without}]


def download_command(folder: Path, target: Target, wanted: Sequence[str]) -> list[str]:
    """The call of pip that fills ``folder``."""
    platforms = [part for tag in target.platforms for part in ("--platform", tag)]
    settings = ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python, *platforms]
    return [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *settings, *wanted]


def make_bundle(folder: Path, target: Target, without: Sequence[str]) -> tuple[Path, ...]:
    """Fill ``folder`` with wheels of the package and of what it needs; returns them.

    Raises:
        UsageError: pip cannot find a package for the target, or the folder cannot be written.
    """
    wanted = requirements(without)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"folder '{folder}' cannot be written: {error.strerror or error}") from None
    own = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(_PROJECT)]
    for command in (own, download_command(folder, target, wanted)):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = " ".join((done.stderr or done.stdout).split())[-300:]
            place = f"Python {target.python} on {target.machine}"
            raise UsageError(f"pip could not fill the wheelhouse for {place}: {reason}; leave a package out with --without NAME")
    return tuple(sorted(folder.glob("*.whl")))


def install_line(folder: Path) -> str:
    """What to run on the other machine."""
    return f"pip install --no-index --find-links {folder.name} 'finetune-planner[{_EXTRA}]'"


def size_bytes(wheels: Sequence[Path]) -> int:
    """Bytes of all wheels."""
    return sum(wheel.stat().st_size for wheel in wheels)


def _name(requirement: str) -> str:
    return requirement.partition(">")[0].partition("=")[0].partition("<")[0].strip().lower()
