"""Facts of an architecture by its ``model_type``, from tables of other packages.

``data/peft_targets.toml``: which modules PEFT adapts where nobody names any.  ``data/model_versions.toml``:
the first Transformers with the modules.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from planner.catalog.location import data_dir
from planner.files.structured import read_toml


def default_targets(architecture: str) -> tuple[str, ...]:
    """Names of modules; empty where PEFT has no default and stops.

    Raises:
        InputFileError: the table cannot be read.
    """
    return tuple(_table("peft_targets.toml", "targets").get(architecture, ()))


def first_version(architecture: str) -> str:
    """The release; empty where it is older than those that were read, or there is none.

    Raises:
        InputFileError: the table cannot be read.
    """
    found: str = _table("model_versions.toml", "since").get(architecture, "")
    return found


@cache
def _table(file: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = read_toml(data_dir() / file)[name]
    return found
