"""Files that a command names: where they are looked for, and what is known of those that are not there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.configs.launchers.fsdp_keys import file_ending_alike, found_file
from planner.configs.shared.stock import stock_launch_file_at
from planner.configs.yaml_or_json import read_document
from planner.errors import InputFileError, UsageError, show

_SUFFIXES = (".json", ".yaml", ".yml", ".conf")


def named_file(path: Path, file: Any) -> Path:
    """A file of the command, from here, from the folder of the script ``path`` or from one above it;
    a variable in its name is not expanded.

    Raises:
        UsageError: it has one.
        InputFileError: the file is in none of these folders.
    """
    found = _looked_for(path, file)
    if found is None:
        raise InputFileError(
            path, f"no such file: {show(str(file))}; check the job from the folder in which it is launched"
        )
    return found


def launch_table(path: Path, file: Any) -> tuple[dict[str, Any], str]:
    """What a file of ``accelerate launch`` says; where it is not there and is one that people know by name,
    with the sentence that tells whose it is.

    Raises:
        UsageError: a variable in its name.
        InputFileError: the file is not there, or cannot be read.
    """
    stock = stock_launch_file_at(Path(str(file))) if _looked_for(path, file) is None else None
    if stock is None:
        try:
            return dict(read_document(named_file(path, file)).table), ""
        except InputFileError as error:
            raise InputFileError(
                error.path, f"{error.problem}; or say --accelerate FILE", error.line
            ) from None
    return dict(stock[0].table), f"{show(str(file))} is not here: taken as {stock[1]}"


def with_files_here(path: Path, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command, in which files of another machine are those here whose path ends alike, by
    folder and name at least; and a sentence on each.
    """
    found, sentences = list[str](), list[str]()
    for word in words:
        name, mark, file = word.rpartition("=")
        away = file.startswith(("/", "$", "~")) and file.endswith(_SUFFIXES)
        away = away and not os.path.exists(file)  # noqa: PTH110 - Path.exists fails at long names
        # A variable or ~ at its beginning is a folder.
        here = file_ending_alike(Path("/", file), path) if away else None
        if here is not None:
            sentences.append(f"{show(file)} is not here: taken as {show(str(here))}")
        found.append(word if here is None else f"{name}{mark}{here}")
    return found, sentences


def _looked_for(path: Path, file: Any) -> Path | None:
    if "$" in str(file):
        raise UsageError(f"{path}: the file '{show(str(file))}' has a variable in its name: write it out")
    here = Path(str(file))
    if os.path.exists(here):  # noqa: PTH110 - Path.exists fails at names that are too long
        return here
    return found_file(here, path)


def from_folder(path: Path, folder: Path, word: str) -> str:
    """A word, or the file of this name in the ``folder`` into which the text ``path`` went before it."""
    name, mark, file = word.rpartition("=")
    if folder == Path() or not file.endswith((".py", ".conf", ".yaml", ".yml", ".json")) or "$" in file:
        return word
    places = (start / folder / file for start in (Path(), path.parent))
    found = next(filter(os.path.isfile, places), None)  # Path.is_file fails at names that are too long.
    return word if found is None else f"{name}{mark}{found}"
