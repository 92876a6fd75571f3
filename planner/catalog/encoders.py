"""Configurations of models that no prediction covers (``data/encoders.toml``), for dry runs of programs:
encoders, those with an encoder and a decoder, and image models.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from planner.catalog.location import data_dir
from planner.files.structured import read_toml


def encoder_config(hub_id: str) -> dict[str, Any] | None:
    """Fields of the ``config.json`` of ``hub_id``; ``None`` for a model that is not in the table.

    Raises:
        InputFileError: the table cannot be read.
    """
    found = next((each for each in encoders() if hub_id in each["names"]), None)
    return None if found is None else dict(found["config"])


@cache
def encoders() -> tuple[dict[str, Any], ...]:
    """Every entry: ``names``, ``params`` and ``config``."""
    return tuple(read_toml(data_dir() / "encoders.toml")["models"])
