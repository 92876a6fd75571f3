"""Facts of an architecture by its ``model_type``, from tables of other packages.

``data/peft_targets.toml``: which modules PEFT adapts where nobody names any.  ``data/model_versions.toml``:
the first Transformers with the modules.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from planner.catalog.location import data_dir
from planner.catalog.packages import parsed_version
from planner.domain.model import ModelSpec
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


def needed_version(model: ModelSpec) -> tuple[int, int, int]:
    """The Transformers that has the classes of the model and of its decoder; zeros where any has, or none."""
    if model.remote_code:
        return (0, 0, 0)
    found = (first_version(each) for each in (model.architecture, model.decoder) if each)
    return max((parsed_version("transformers", each) for each in found if each), default=(0, 0, 0))


@cache
def _table(file: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = read_toml(data_dir() / file)[name]
    return found
