"""A hostfile as DeepSpeed reads it: which machines make one job, and how many GPUs each gives.

Every line is a name and ``slots=N``; ``#`` begins a comment.  Source:
DeepSpeed 0.19 launcher/runner.py fetch_hostfile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputFileError, UsageError
from planner.files.reading import read_text

_LINE = re.compile(r"(?P<name>[A-Za-z0-9_.-]{1,253})\s+slots=(?P<slots>[0-9]{1,4})")
_PORT = 29500


@dataclass(frozen=True, slots=True)
class Hosts:
    """Machines of one job in their order, and the GPUs that each gives."""

    names: tuple[str, ...]
    slots: int


def read_hostfile(path: str | Path) -> Hosts:
    """The machines of a hostfile.

    Raises:
        InputFileError: missing, not such a file, a machine twice,
        or machines that give different numbers of GPUs.
    """
    file = Path(path)
    found: dict[str, int] = {}
    for number, line in enumerate(read_text(file).splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _LINE.fullmatch(entry)
        if match is None or int(match["slots"]) < 1:
            raise InputFileError(file, "a line must be like 'node-1 slots=8'", number)
        if match["name"] in found:
            raise InputFileError(
                file, f"machine '{match['name']}' is there twice; write one line for each", number
            )
        found[match["name"]] = int(match["slots"])
    if not found:
        raise InputFileError(file, "names no machine: write a line like 'node-1 slots=8' for each")
    if len(set(found.values())) > 1:
        raise InputFileError(
            file,
            "different numbers of slots; one job needs as many GPUs of each machine: give all the smallest",
        )
    return Hosts(tuple(found), next(iter(found.values())))


def with_hosts(given: dict[str, Any], path: str) -> dict[str, Any]:
    """What was given on the command line, with the machines of the hostfile: the first one is where all meet.

    Raises:
        UsageError: the command line says the same things once more, or the file cannot be used.
    """
    for flag in ("nodes", "gpus", "rendezvous"):
        if given.get(flag) is not None:
            raise UsageError(f"--{flag} is in the hostfile already: leave one of the two out")
    hosts = read_hostfile(path)
    several = (
        {"nodes": len(hosts.names), "rendezvous": f"{hosts.names[0]}:{_PORT}"} if len(hosts.names) > 1 else {}
    )
    return {**given, "gpus": hosts.slots, **several}
