"""Commands that a program starts for somebody, behind ``--``: ``python mason.py -- accelerate launch``; or
another shell, as one word: ``srun bash -c "accelerate launch ..."``.

Source: allenai/open-instruct e6c3044aa mason.py parse_commands and make_internal_command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from planner.configs.launchers.shell import HANDED_AND, commands

_BREAK = "--"
# Scripts that start what they are handed on so many machines, and have each number of processes for one.
_ON_NODES = {"mason.py": "--num_nodes"}
_PROCESSES = "--num_processes"
_SHELLS = ("bash", "sh")
# What Ray starts on its cluster (ray 2.54 job submit).
_SUBMITS = ("ray", "job", "submit")


def handed_over(words: Sequence[str]) -> Iterator[list[str]]:
    """Each command behind a break, in the form in which it is started there; none where there is no break.

    What a job's own shell reads between commands (an escaped ``&&``) parts them, too.
    """
    if text := _of_other_shell(words):
        yield from (command.words for command in commands(Path(), text) if command.words)
        return
    own = words[: words.index(_BREAK)] if _BREAK in words else []
    if not any(word.endswith(".py") for word in own) and tuple(own[:3]) != _SUBMITS:
        return
    option = next((_ON_NODES[name] for word in own if (name := Path(word).name) in _ON_NODES), "")
    nodes = next((value for name, value in pairwise(own) if name == option), "1")
    command: list[str] = []
    for word in [*words[len(own) + 1 :], _BREAK]:
        if word not in (_BREAK, HANDED_AND):
            command.append(word)
            continue
        yield _on_nodes(command, nodes) if option else command
        command = []


def _of_other_shell(words: Sequence[str]) -> str:
    """The text that ``bash -c`` is given, also behind ``srun``; empty for other commands."""
    start = next((index for index, word in enumerate(words) if word in _SHELLS), len(words))
    known = start == 0 or words[0] == "srun"
    option, text = [*words[start + 1 : start + 3], "", ""][:2]
    return text if known and option in ("-c", "-lc") else ""


def _on_nodes(command: list[str], nodes: str) -> list[str]:
    """A command whose processes are those of one machine, as one for so many."""
    if nodes == "1" or _PROCESSES not in command[:-1]:
        return command
    place = command.index(_PROCESSES) + 1
    if not (command[place].isdecimal() and nodes.isdecimal()):
        return command
    every = str(int(command[place]) * int(nodes))
    return [*command[:place], every, "--num_machines", nodes, *command[place + 1 :]]
