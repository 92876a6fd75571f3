"""YAML and JSON files of untrusted origin as one table: safe loader, bounded, no aliases."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.configs.markdown import MARKDOWN, yaml_of
from planner.errors import InputFileError, show
from planner.files.reading import read_text
from planner.files.structured import json_value, toml_table, yaml_value
from planner.units import MIB

# A job's file has a few hundred lines; the pure Python parser takes seconds for a megabyte.
MAX_DOCUMENT_BYTES = MIB // 4


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds: one table with text as keys.

    ``twice``: keys of a YAML file that are given again, with the line of the last,
    whose value is in the table.
    """

    path: Path
    table: dict[str, Any]
    twice: tuple[tuple[str, int], ...] = ()


def read_document(path: Path) -> Document:
    """The table of a YAML, JSON or TOML file, by its suffix; what has none is YAML, of which JSON is nearly a
    part.  Of a Markdown file its one block of YAML, as model cards show it.

    Raises:
        InputFileError: unreadable, too large, not YAML, JSON or TOML, empty, not a table, with aliases; JSON
            with a key given twice, which DeepSpeed refuses too.
    """
    _refuse_other_kinds(path)
    text = read_text(path, MAX_DOCUMENT_BYTES)
    # What begins with a brace are the arguments of a command that it shows.
    if path.suffix == MARKDOWN and text.strip() and not text.startswith("{"):
        text = yaml_of(path, text)
    twice: dict[str, int] = {}
    if not text.strip():
        value = None
    elif path.suffix in (".json", ".conf"):
        value = json_value(path, text)
    elif path.suffix == ".toml":
        value = toml_table(path, text)
    else:
        value, twice = yaml_value(path, text)
    if value is None:
        raise InputFileError(
            path,
            "empty: fill in the keys of the job, or ask without a file: plan --model NAME --method NAME "
            "--gpu NAME --seq N",
        )
    if not isinstance(value, dict):
        raise InputFileError(path, f"must be a table of keys and values, but at its top is {_kind(value)}")
    for key in value:
        if not isinstance(key, str):
            raise InputFileError(path, f"keys must be text, but one is {_kind(key)}")
    return Document(path, value, tuple(twice.items()))


def _refuse_other_kinds(path: Path) -> None:
    """Refuse programs and data sets, each with its way out."""
    name = shlex.quote(show(str(path)))
    if path.suffix == ".py":
        raise InputFileError(
            path,
            f'a program: give its arguments, as --command "python {name} --NAME VALUE ...", '
            f"or run it without a GPU: measure trace --gpu NAME -- python {name}",
        )
    if path.suffix == ".jsonl":
        raise InputFileError(path, f"a data set, not a job: plan ... --data {name} counts its lengths")


def _kind(value: object) -> str:
    """What stands there, without repeating it: the file may be one that was never meant."""
    if isinstance(value, bool):
        return "true or false"
    kinds = ((str, "text"), (int | float, "a number"), (list, "a list"))
    return next(
        (name for kind, name in kinds if isinstance(value, kind)), f"a value of type {type(value).__name__}"
    )
