"""The first Transformers with the modules of an architecture (``data/model_versions.toml``)."""

from __future__ import annotations

from functools import cache

from planner.catalog.location import data_dir
from planner.files.structured import read_toml


def first_version(architecture: str) -> str:
    """The release by ``model_type``; empty where it is older than those that were read, or there is none.

    Raises:
        InputFileError: the table cannot be read.
    """
    return _since().get(architecture, "")


@cache
def _since() -> dict[str, str]:
    found: dict[str, str] = read_toml(data_dir() / "model_versions.toml")["since"]
    return found
