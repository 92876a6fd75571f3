"""Which modules PEFT adapts where nobody names any (``data/peft_targets.toml``)."""

from __future__ import annotations

from functools import cache

from planner.catalog.location import data_dir
from planner.files.structured import read_toml


def default_targets(architecture: str) -> tuple[str, ...]:
    """Names of modules by ``model_type``; empty where PEFT has no default and stops.

    Raises:
        InputFileError: the table cannot be read.
    """
    return tuple(_targets().get(architecture, ()))


@cache
def _targets() -> dict[str, list[str]]:
    found: dict[str, list[str]] = read_toml(data_dir() / "peft_targets.toml")["targets"]
    return found
