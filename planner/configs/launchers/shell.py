"""Shell text as commands of words.  Nothing is run; of variables and substitutions only literals are put in
(:mod:`planner.configs.launchers.variables`).

Source: POSIX.1-2017 chapter 2, as far as launch scripts use it: quotes, line continuation, comments,
assignments before a command, operators between commands, redirections behind them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from planner.configs.launchers.variables import with_values
from planner.errors import InputFileError

# What a shell would replace by the output of another command;
# it stands as a placeholder that is never filled in.
_SUBSTITUTION = re.compile(r"\$\([^()]*\)|`[^`]*`")
_UNKNOWN = "${command}"
_BETWEEN = frozenset({";", "&", "&&", "|", "||", "(", ")", ";;", "|&"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
# Programs that start another one, with the words that they take before it.
_WRAPPERS = {"nohup": 0, "time": 0, "exec": 0, "env": 0, "sudo": 0, "export": 0, "uv": 1, "poetry": 1}


def commands(path: Path, text: str) -> Iterator[list[str]]:
    """Each simple command of ``text`` as its words, without assignments, wrappers and redirections.

    Raises:
        InputFileError: quotes that are not closed.
    """
    return (words for words, _ in commands_with_variables(path, text))


def commands_with_variables(path: Path, text: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Each simple command as its words, with the variables of its environment that the text sets: those that
    are exported before it, and those that stand before its program.

    Raises:
        InputFileError: quotes that are not closed.
    """
    exported: dict[str, str] = {}
    for words in _simple_commands(path, text):
        bare, own = _bare(words), _assigned(words)
        if not bare and words[:1] == ["export"]:
            exported |= own
        yield bare, {**exported, **own}


def _assigned(words: list[str]) -> dict[str, str]:
    """The variables that a command sets before its program."""
    found: dict[str, str] = {}
    for word in words:
        if _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            found[name.rstrip("+")] = value
        elif word not in _WRAPPERS:
            break
    return found


def _simple_commands(path: Path, text: str) -> Iterator[list[str]]:
    """Each simple command with all of its words."""
    pending = ""
    for line in _logical_lines(with_values(text)):
        pending = f"{pending}\n{line}" if pending else line
        try:
            words = _words(pending)
        except ValueError:
            # A quote that goes on in the next line.
            continue
        pending = ""
        yield from _split(words)
    if pending:
        raise InputFileError(path, "a quote is opened and not closed")


def _logical_lines(text: str) -> Iterator[str]:
    """Lines with those behind a backslash joined; a comment ends its line, whatever its last character is."""
    before = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            yield before
            before = ""
        elif line.endswith("\\"):
            before += line[:-1] + " "
        else:
            yield before + line
            before = ""
    yield before


def _words(text: str) -> list[str]:
    while (shorter := _SUBSTITUTION.sub(_UNKNOWN, text)) != text:
        text = shorter
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(lexer)


def _split(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in words:
        if word.startswith("#"):
            break
        if word in _BETWEEN:
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _bare(command: list[str]) -> list[str]:
    """A command without what stands before its program, and without redirections."""
    words = list(command)
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in _WRAPPERS):
        del words[: 1 + _WRAPPERS.get(words[0], 0)]
    end = next((index for index, word in enumerate(words) if word and set(word) <= set("<>&")), len(words))
    # The number of a stream belongs to what follows it.
    if end < len(words) and end > 0 and words[end - 1] in ("1", "2"):
        end -= 1
    return words[:end]
