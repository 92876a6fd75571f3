"""Launch files that come with a tool, known by name: what they say, where they are not at hand
(``data/launch_files.toml``).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from planner.catalog.location import data_dir
from planner.configs.yaml_or_json import Document
from planner.files.structured import read_toml


def stock_file(named: Path, whose: str = "") -> tuple[Document, str] | None:
    """What a stock DeepSpeed file with this name, or folder and name, says, and its source; else ``None``.

    ``whose``: the tool that looks for it, of whose files some are known to it alone.
    """
    files = {**_tables()["files"], **_tables().get(whose, {})}
    return _document(named, files.get("/".join(named.parts[-2:])) or files.get(named.name))


def stock_launch_file(name: str) -> tuple[Document, str] | None:
    """What the launch file that TRL ships under this name says, with its source, ``None`` for others."""
    return _document(Path(f"{name}.yaml"), _tables()["accelerate"].get(name))


def stock_launch_file_at(path: Path) -> tuple[Document, str] | None:
    """The same of a path in the repositories of TRL, alignment-handbook or open-r1, whose files of these
    names say the same of the engine; those of FSDP differ.

    Source: trl c04074e24 of 2023-09 to f2cd57710 of 2026-07 examples/accelerate_configs; alignment-handbook
    925acdf and open-r1 1416fa0 recipes/accelerate_configs.
    """
    name = path.stem.removeprefix("deepspeed_")
    name = "multi_gpu" if name == "ddp" else name
    known = path.parent.name == "accelerate_configs" and name in ("zero1", "zero2", "zero3", "multi_gpu")
    return stock_launch_file(name) if known else None


def stock_engine(name: str, whose: str = "ms-swift") -> Document | None:
    """What the file of an engine says that a tool ships under this name, ``None`` for others."""
    found = _document(Path(f"{name}.json"), _tables()[whose].get(name))
    return None if found is None else found[0]


def _document(path: Path, entry: dict[str, Any] | None) -> tuple[Document, str] | None:
    if entry is None:
        return None
    return Document(path, {key: value for key, value in entry.items() if key != "source"}), entry["source"]


@cache
def _tables() -> dict[str, dict[str, dict[str, Any]]]:
    return read_toml(data_dir() / "launch_files.toml")
