"""``measure bundle DIR``: a wheelhouse for a machine without a network."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer

from measure.cli.job_flags import need
from measure.output import write_result
from planner.errors import ExitCode
from planner.units import format_bytes

_HERE = ".".join(platform.python_version_tuple()[:2])


def bundle(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder for the wheels")],
    python: Annotated[
        str, typer.Option("--python", metavar="X.Y", help="Python of the other machine")
    ] = _HERE,
    machine: Annotated[
        str, typer.Option("--machine", metavar="NAME", help="Its processor: x86_64 or aarch64")
    ] = "x86_64",
    without: Annotated[
        str, typer.Option("--without", metavar="NAMES", help="Packages that are there already, with ','")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which wheels would be fetched, and write nothing")
    ] = False,
) -> int:
    """Write wheels of this package and of everything that measuring needs,
    to carry to a machine without a network.
    """
    need("measure", "packaging")
    from measure.bundle import WheelTarget, install_line, make_bundle, plan_bundle, size_bytes

    out, target = Path(folder), WheelTarget(python, machine)
    skipped = [name.strip() for name in without.split(",") if name.strip()]
    if dry_run:
        fetched = plan_bundle(target, skipped)
        rows = "".join(f"  {each.name} {each.version}  {each.file}\n" for each in fetched)
        write_result(
            f"{len(fetched)} wheels would be fetched into {out}, beside that of this package:\n{rows}"
        )
        return int(ExitCode.FITS)
    wheels = make_bundle(out, target, skipped)
    write_result(
        f"{len(wheels)} wheels, {format_bytes(size_bytes(wheels))}, in {out}; on the other machine:\n"
    )
    write_result(f"  {install_line(out, skipped)}\n")
    return int(ExitCode.FITS)
