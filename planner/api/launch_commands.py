"""Command lines and launch scripts as jobs: the files that would say the same,
which are read in place of real ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from planner.api.files import CheckOptions
from planner.configs.launchers.command_line import how_many, reads_text, started
from planner.configs.launchers.launch import LAUNCH_LINE
from planner.configs.launchers.variables import takes_defaults
from planner.configs.markdown import MARKDOWN, shell_of
from planner.configs.read import UntoldToolError, recognise
from planner.configs.shared.own_scripts import other_task
from planner.configs.yaml_or_json import Document
from planner.errors import PlannerError, show
from planner.files.reading import read_text

COMMAND = "command"
"""How a command given as text is called, where a config has its name."""
_SCRIPT_SUFFIXES = (".sh", ".bash")
_CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
# A shell in the first line, without which sbatch takes no script (SLURM 24.05 sbatch.1): run.slurm, a.job.
_OF_A_SHELL = re.compile(r"#![ \t]*\S*/(?:env[ \t]+)?(?:-S[ \t]+)?(?:ba|da|k|z)?sh\b")
_NO_FILE = "none"
_MOST_COMMANDS = 100


@dataclass(frozen=True, slots=True)
class CommandFiles:
    """What to read for a command: ``texts`` by resolved path, the options to read them with,
    and what to say of the script, if anything.

    ``way_out``: where its arguments cannot be read as those of the tool that their names say.
    """

    texts: Mapping[Path, str]
    options: CheckOptions
    remark: str
    way_out: str = ""


def is_script(config: str) -> bool:
    """Whether a file holds commands: a launch script, or a Markdown file that shows one of a training."""
    if config.endswith(_SCRIPT_SUFFIXES):
        return True
    if config.endswith(_CONFIG_SUFFIXES):
        return False
    try:
        text = _text_of(Path(config))
        return (
            how_many(Path(config), text) > 0 if config.endswith(MARKDOWN) else bool(_OF_A_SHELL.match(text))
        )
    except PlannerError:
        return False


def _text_of(path: Path) -> str:
    text = read_text(path)
    return shell_of(text) if path.suffix == MARKDOWN else text


def numbers_of(script: str) -> tuple[int | None, ...]:
    """The numbers of the commands in a launch script that start a training, from 1 on; ``None`` alone where
    there is one, none, or the script cannot be read, which its own check says.
    """
    try:
        path = Path(script)
        count = how_many(path, _text_of(path))
    except PlannerError:
        return (None,)
    return tuple(range(1, count + 1)) if 1 < count <= _MOST_COMMANDS else (None,)


def command_files(
    config: str, command: str, options: CheckOptions, number: int | None = None
) -> CommandFiles:
    """The arguments of a command as the file ``config``, and its launch as one beside it;
    a launch file that is given wins.

    ``command``: its text; empty for the text of the launch script ``config``, of whose commands ``number``
    is meant.

    Raises:
        InputFileError: the script cannot be read.
        UsageError: it has no command that starts a training, or several.
        NotModelledError: a training that no formula covers.
    """
    path = Path(config)
    script = command or _text_of(path)
    job = started(path, script, number)
    if job.no_launch is not None and options.accelerate is None:
        raise job.no_launch
    arguments, launch = job.texts
    texts, beside = {path.resolve(): arguments}, options.accelerate
    if beside is None:
        line = path.with_name(f"{path.name}{LAUNCH_LINE}")
        beside = str(line) if job.launch else _NO_FILE
        texts[line.resolve()] = launch
    remarks = []
    hands_on = bool(job.arguments) and not job.says_its_tool
    if hands_on and job.tool is not None:
        remarks.append(f"{show(job.script)} is taken to be the script of that name of {job.tool}")
    elif hands_on:
        remarks.append(f"{show(job.script)} is taken to hand its arguments to the tool that their names say")
    if job.stock:
        remarks.append(job.stock)
    if takes_defaults(script, str(path.parent)):
        remarks.append("variables and arguments are counted with the defaults that the script gives them")
    own = not job.says_its_tool and job.tool is None
    read = replace(
        options, accelerate=beside, tool=options.tool or job.tool, task=job.task, script=job.script, own=own
    )
    read = replace(read, allocator=job.allocator)
    if options.tool is None and reads_text(path, job):
        # Its text says more than names of arguments, and than its own name.
        read = replace(read, words=job.given)
        return CommandFiles(texts, read, "; ".join(remarks[hands_on:]))
    if job.unread is not None:
        raise job.unread
    way_out = ""
    if own and read.tool is None and _may_be_the_trainers(Document(path, job.arguments)):
        way_out = f"; is {show(job.script)} a script of your own? --tool transformers reads it"
    return CommandFiles(texts, read, "; ".join(remarks), way_out)


def _may_be_the_trainers(document: Document) -> bool:
    """Whether arguments that are read as those of another tool could be read as the Trainer's."""
    try:
        told = recognise(document, own=True).name
    except UntoldToolError:
        return False
    return told != "transformers" and not other_task(document.table, document.table)
