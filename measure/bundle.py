"""A wheelhouse for a machine without a network: everything that measuring needs,
for a given Python and platform.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from planner.errors import UsageError
from planner.printing import without_passwords

_PROJECT = Path(__file__).resolve().parents[1]
_EXTRA = "measure"
# pip takes tags as written: one that is missing here hides its wheels,
# as 2_18 does NCCL's and with it every newer torch.
_OLDEST_GLIBC, _NEWEST_GLIBC = 5, 35
_OLDER_NAMES = ("manylinux2014", "manylinux2010", "manylinux1")


@dataclass(frozen=True, slots=True)
class WheelTarget:
    """What the wheels are for: a Python such as ``3.12`` and a machine such as ``x86_64``."""

    python: str
    machine: str

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags that run there, on a Linux with glibc 2.35 or newer."""
        versions = [f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC, _OLDEST_GLIBC - 1, -1)]
        return tuple(f"{tag}_{self.machine}" for tag in (*versions, *_OLDER_NAMES))


def requirements() -> list[str]:
    """What the package and its measure extra ask for.

    Raises:
        UsageError: not run from a checkout, where the project file is.
    """
    file = _PROJECT / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    except OSError:
        raise UsageError("measure bundle needs a checkout of the project, where pyproject.toml is") from None
    return [*project["dependencies"], *project["optional-dependencies"][_EXTRA]]


@dataclass(frozen=True, slots=True)
class Fetched:
    """A wheel that pip would fetch, and what it needs itself, as its metadata say it."""

    name: str
    version: str
    file: str
    needs: tuple[str, ...] = ()


def download_command(folder: Path, target: WheelTarget, fetched: Sequence[Fetched]) -> list[str]:
    """The call of pip that fills ``folder`` with these wheels and no others."""
    exact = [f"{each.name}=={each.version}" for each in fetched]
    return [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        *_settings(target),
        *exact,
    ]


def report_command(folder: Path, target: WheelTarget, wanted: Sequence[str]) -> list[str]:
    """The call of pip that says what it would fetch and fetches no wheel:
    it needs a ``folder`` and leaves it empty.

    Source: pip 26.3, ``pip install --dry-run --report``; both are there since pip 22.2.
    """
    dry = ["--dry-run", "--report", "-", "--ignore-installed", "--target", str(folder)]
    return [sys.executable, "-m", "pip", "install", "--quiet", *dry, *_settings(target), *wanted]


def _settings(target: WheelTarget) -> list[str]:
    platforms = [part for tag in target.platforms for part in ("--platform", tag)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", target.python, *platforms]


def plan_bundle(target: WheelTarget, without: Sequence[str]) -> tuple[Fetched, ...]:
    """What :func:`make_bundle` fetches, beside the wheel of this package, by name.

    Packages of ``without`` are left out, and what only they need with them: of torch that is gigabytes.

    Raises:
        UsageError: pip cannot find a package for the target.
    """
    missing = {_canonical(name) for name in without}
    asked = [each for each in requirements() if _requirement(each).canonical not in missing]
    with tempfile.TemporaryDirectory() as folder:
        report = json.loads(_run_pip(report_command(Path(folder), target, asked), target))
    found = {}
    for each in report["install"]:
        metadata = each["metadata"]
        # Without the query, where an index may have put a key.
        file = urlsplit(each["download_info"]["url"]).path.rpartition("/")[2]
        found[_canonical(metadata["name"])] = Fetched(
            metadata["name"], metadata["version"], file, tuple(metadata.get("requires_dist", ()))
        )
    return tuple(found[name] for name in sorted(_needed(found, asked, missing, target)))


def _needed(
    found: Mapping[str, Fetched], asked: Sequence[str], missing: AbstractSet[str], target: WheelTarget
) -> set[str]:
    """Packages of ``found`` that ``asked`` comes to without going through ``missing``."""
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [_requirement(text) for text in asked]
    while left:
        wanted = left.pop()
        place = (wanted.canonical, wanted.extras)
        if wanted.canonical in missing or wanted.canonical not in found or place in seen:
            continue
        seen.add(place)
        inner = [_requirement(text) for text in found[wanted.canonical].needs]
        left += [each for each in inner if each.applies(target, wanted.extras)]
    return {name for name, _ in seen}


@dataclass(frozen=True, slots=True)
class _Wanted:
    canonical: str
    extras: frozenset[str]
    marker: Any

    def applies(self, target: WheelTarget, extras: AbstractSet[str]) -> bool:
        """Whether the other machine needs it, when it takes its package with ``extras``."""
        place = {"python_version": target.python, "platform_machine": target.machine, "sys_platform": "linux"}
        return self.marker is None or any(
            self.marker.evaluate({**place, "extra": extra}) for extra in ("", *extras)
        )


def _requirement(text: str) -> _Wanted:
    from packaging.requirements import Requirement

    read = Requirement(text)
    return _Wanted(_canonical(read.name), frozenset(read.extras), read.marker)


def _canonical(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)


def make_bundle(folder: Path, target: WheelTarget, without: Sequence[str]) -> tuple[Path, ...]:
    """Fill ``folder`` with wheels of the package and of what it needs; returns them.

    Raises:
        UsageError: pip cannot find a package for the target, or the folder cannot be written.
    """
    fetched = plan_bundle(target, without)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"folder '{folder}' cannot be written: {error.strerror or error}") from None
    own = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(_PROJECT),
    ]
    for command in (own, download_command(folder, target, fetched)):
        _run_pip(command, target)
    return tuple(sorted(folder.glob("*.whl")))


def _run_pip(command: Sequence[str], target: WheelTarget) -> str:
    """What pip wrote.

    Raises:
        UsageError: it failed; with its reason in short, which may name an index with a password.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = without_passwords(" ".join((done.stderr or done.stdout).split()))[-300:]
        place = f"Python {target.python} on {target.machine}"
        raise UsageError(
            f"pip could not fill the wheelhouse for {place}: {reason}; leave a package out with "
            "--without NAME"
        )
    return done.stdout


def install_line(folder: Path, without: Sequence[str] = ()) -> str:
    """What to run on the other machine; where packages were left out,
    all that was carried and nothing that is missing.
    """
    if without:
        return f"pip install --no-index --no-deps {folder.name}/*.whl"
    return f"pip install --no-index --find-links {folder.name} 'finetune-planner[{_EXTRA}]'"


def size_bytes(wheels: Sequence[Path]) -> int:
    """Bytes of all wheels."""
    return sum(wheel.stat().st_size for wheel in wheels)
