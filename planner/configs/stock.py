"""DeepSpeed files that come with a tool, known by their last folder and name: what they say, where they are not at hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from planner.catalog.location import data_dir
from planner.catalog.toml_file import read_toml
from planner.configs.document import Document


def stock_file(named: Path) -> tuple[Document, str] | None:
    """What a stock file with this folder and name says (``data/launch_files.toml``) with its source, ``None`` for others."""
    entry = _files().get("/".join(named.parts[-2:]))
    if entry is None:
        return None
    return Document(named, {key: value for key, value in entry.items() if key != "source"}), entry["source"]


@cache
def _files() -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = read_toml(data_dir() / "launch_files.toml")["files"]
    return files
