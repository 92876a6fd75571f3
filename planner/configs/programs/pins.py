"""Versions of packages that a notebook installs, or a requirements.txt beside a program names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.configs.programs.source import SUFFIXES
from planner.errors import PlannerError
from planner.files.reading import read_text
from planner.files.structured import json_value
from planner.units import MIB

_PACKAGES = "transformers|trl|unsloth|peft|bitsandbytes|liger-kernel|flash-attn|deepspeed|torch"
_PIN = re.compile(rf"(?<![\w.\-/])({_PACKAGES})(?:\[[\w,]*\])?\s*==\s*([0-9][\w.]*[0-9a-z])", re.IGNORECASE)
_INSTALLS = re.compile(r"\bpip\b.*\binstall\b|\buv\b.*\b(?:add|install)\b")
_REQUIREMENTS = "requirements.txt"
_MOST_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class Pins:
    """Versions by package, and where they are named; ``unsure``: packages that are named at several."""

    place: str
    versions: dict[str, str]
    unsure: tuple[str, ...] = ()


def pins_of(program: Path) -> Pins:
    """What a program's own installation says; nothing where there is none, or it cannot be read."""
    place, found = str(program), list[tuple[str, str]]()
    try:
        if program.suffix == SUFFIXES[1]:
            found = [pin for line in _installing(program) for pin in _PIN.findall(line)]
        elif (beside := program.with_name(_REQUIREMENTS)).is_file():
            place = str(beside)
            lines = read_text(beside, MIB).splitlines()
            found = [pin for line in lines for pin in _PIN.findall(line.partition("#")[0])]
    except (PlannerError, OSError, KeyError, TypeError):
        return Pins(place, {})
    versions: dict[str, set[str]] = {}
    for package, version in found:
        versions.setdefault(package.lower(), set()).add(version)
    sure = {name: next(iter(each)) for name, each in versions.items() if len(each) == 1}
    return Pins(place, sure, tuple(sorted(versions.keys() - sure)))


def _installing(notebook: Path) -> Iterator[str]:
    """Lines of cells that install something; what goes on behind a backslash goes with its line."""
    for cell in json_value(notebook, read_text(notebook, _MOST_BYTES))["cells"]:
        text = "".join(cell["source"]).replace("\\\n", " ")
        if cell["cell_type"] == "code":
            yield from (line for line in text.splitlines() if _INSTALLS.search(line.partition("#")[0]))
