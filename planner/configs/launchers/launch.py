"""Launch files beside a config: what ``accelerate launch --config_file`` or ``--deepspeed`` would be given.

A trainer's own file often says nothing about how state is divided over GPUs: the launch line does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from planner.configs.launchers.fsdp_keys import Beside
from planner.configs.said_by_file import Reading
from planner.configs.yaml_or_json import MAX_DOCUMENT_BYTES, Document, read_document
from planner.errors import InputFileError, show
from planner.files.reading import read_text
from planner.printing import printable
from planner.words import words

OPEN_NODES = "nnodes"
"""A key of a command's launch: the variable that says how many nodes, where only its shell knows it."""
LAUNCH_LINE = " (launch line)"
"""What stands behind the name of a script where its launcher's options are read in place of a launch file."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
# What only such files say: `accelerate config` writes the first, DeepSpeed's have the second.
_ACCELERATE = re.compile(r"^distributed_type\s*:", re.MULTILINE)
_DEEPSPEED = re.compile(r'"zero_optimization"\s*:')
# Keys with which a config says itself how state is divided.
_SHARDS = ("deepspeed", "fsdp", "accelerate_config")
# Folders of repositories that hold launch files: TRL's, alignment-handbook's, PEFT's,
# LLaMA-Factory's, Axolotl's.
_USUAL = words("accelerate_configs accelerate_config accelerate deepspeed_configs deepspeed ds_configs")
# How far up a repository is searched, how many files of a folder are looked at, and how large they may be.
_MOST_FOLDERS_UP = 4
_MOST_FILES = 200
_MOST_BYTES = 65_536
_MOST_NAMED = 4
# A comment that says how the file is meant to be launched.
_IN_COMMENT = re.compile(r"^[ \t]*#.*--config_file[ =]+([\w./-]{1,200}\.ya?ml)(?=\s|$)", re.MULTILINE)
NO_LAUNCH_FILE = "no launch file is given"
"""How the remark begins that lists launch files of which none was taken."""


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """Launch files that were found: in the config's own folder,
    and in the usual folders of its repository.
    """

    beside: tuple[Path, ...] = ()
    usual: tuple[Path, ...] = ()


def find_launch_files(config: Path) -> LaunchFiles:
    """The launch files of a config.  Names and a few bytes decide: nothing is parsed."""
    usual: list[Path] = []
    for folder in _folders_up(config.parent):
        usual += [path for name in _USUAL for path in _launch_files_in(folder / name)]
        if usual or (folder / ".git").exists():
            break
    beside = tuple(path for path in _launch_files_in(config.parent) if path.name != config.name)
    return LaunchFiles(beside, tuple(path for path in usual if path not in beside))


def with_commented_launch_file(document: Document, reading: Reading, beside: Beside) -> Beside:
    """``beside`` with the file that a comment of the config hands to ``accelerate launch --config_file``.

    Comments decide only where no file is given and no key says how state is divided.
    """
    if beside.given or not beside.look or document.path.suffix not in (".yaml", ".yml"):
        return beside
    named = dict.fromkeys(_IN_COMMENT.findall(read_text(document.path, MAX_DOCUMENT_BYTES)))
    if len(named) != 1 or any(map(document.table.get, _SHARDS)):
        return beside
    name = Path(*named)
    if name.is_absolute() or ".." in name.parts:
        return beside
    around = (folder / name for folder in _folders_up(document.path.parent))
    if (path := next(filter(_is_launch_file, around), None)) is not None:
        return take_launch_file(path, reading, beside, "a comment of the config names this launch file")
    text = f"a comment names the launch file {show(str(name))}, which is not here: say --accelerate FILE"
    reading.remark(str(document.path), text)
    return beside


def with_launch_file(document: Document, reading: Reading, beside: Beside) -> Beside:
    """``beside`` with the launch file that lies alone beside a config which leaves the sharding open.

    Several are named in a remark instead, and so are those in the usual folders:
    which one is launched is not known.
    """
    if beside.given or not beside.look or any(map(document.table.get, _SHARDS)):
        return beside
    found = find_launch_files(document.path)
    if len(found.beside) == 1:
        return take_launch_file(found.beside[0], reading, beside)
    reading.candidates = found.beside + found.usual
    if reading.candidates:
        names = ", ".join(short_path(path) for path in reading.candidates[:_MOST_NAMED])
        more = (
            f" and {len(reading.candidates) - _MOST_NAMED} more"
            if len(reading.candidates) > _MOST_NAMED
            else ""
        )
        text = (
            f"{NO_LAUNCH_FILE}, so DDP is assumed on several GPUs; here are {names}{more}: say "
            "--accelerate FILE"
        )
        reading.remark(str(document.path), text)
    return beside


def _folders_up(folder: Path) -> Iterator[Path]:
    """The folder and some of those above it."""
    whole = folder.absolute()
    yield from (whole, *whole.parents)[:_MOST_FOLDERS_UP]


def take_launch_file(
    path: Path, reading: Reading, beside: Beside, why: str = "this launch file beside the config is counted"
) -> Beside:
    """``beside`` with a launch file that was found, which is remarked on."""
    reading.launch = path
    text = f"{why}; --accelerate FILE counts another, --accelerate none counts none"
    reading.remark(str(path), text)
    return replace(beside, deepspeed=path) if path.suffix == ".json" else replace(beside, accelerate=path)


def processes_of(beside: Beside) -> int | None:
    """How many processes train, one on each GPU: as flags say, else as the launch of a command does;
    ``None`` where neither does, or where a program is asked about whose launch is not said.

    Raises:
        InputFileError: the launch file cannot be read.
    """
    alone = 1 if beside.gpus == 1 else None
    if beside.words is None or beside.accelerate is None or not beside.look:
        return alone if beside.words is None else None
    table = read_document(beside.accelerate).table
    number = table.get("num_processes")
    if number == 1 and table.get("distributed_type") == "NO":
        return 1
    return beside.gpus or (number if isinstance(number, int) and OPEN_NODES not in table else None)


def short_path(path: Path) -> str:
    """A path as a message may repeat it: from the working directory where that is shorter, printable."""
    return printable(min(str(path), os.path.relpath(path), key=len))


def _launch_files_in(folder: Path) -> list[Path]:
    try:
        if not folder.is_dir():
            return []
        names = sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml", ".json"))
    except OSError:
        return []
    return [path for path in names[:_MOST_FILES] if _is_launch_file(path)]


def _is_launch_file(path: Path) -> bool:
    try:
        text = read_text(path, _MOST_BYTES)
    except InputFileError:
        return False
    return bool((_DEEPSPEED if path.suffix == ".json" else _ACCELERATE).search(text))
