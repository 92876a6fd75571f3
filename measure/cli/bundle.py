"""``measure bundle DIR``: a wheelhouse for a machine without a network."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from planner.errors import ExitCode
from planner.units import format_bytes

_HERE = ".".join(platform.python_version_tuple()[:2])


def bundle(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder for the wheels")],
    python: Annotated[str, typer.Option("--python", metavar="X.Y", help="Python of the other machine")] = _HERE,
    machine: Annotated[str, typer.Option("--machine", metavar="NAME", help="Its processor: x86_64 or aarch64")] = "x86_64",
    without: Annotated[str, typer.Option("--without", metavar="NAMES", help="Packages that are there already, with ','")] = "",
) -> int:
    """Write wheels of this package and of everything that measuring needs, to carry to a machine without a network."""
    from measure.bundle import Target, install_line, make_bundle, size_bytes

    out = Path(folder)
    skipped = [name.strip() for name in without.split(",") if name.strip()]
    wheels = make_bundle(out, Target(python, machine), skipped)
    sys.stdout.write(f"{len(wheels)} wheels, {format_bytes(size_bytes(wheels))}, in {out}; on the other machine:\n")
    sys.stdout.write(f"  {install_line(out)}\n")
    return int(ExitCode.FITS)
