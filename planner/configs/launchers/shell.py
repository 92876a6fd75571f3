"""Shell text as commands of words.  Nothing is run; of variables and substitutions only literals are put in
(:mod:`planner.configs.launchers.variables`).

Source: POSIX.1-2017 chapter 2, as far as launch scripts use it: quotes, line continuation, comments,
assignments before a command, operators between commands, redirections behind them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from planner.configs.launchers.script_names import as_program
from planner.configs.launchers.shell_texts import uncommented, with_documents
from planner.configs.launchers.variables import with_depth, with_values
from planner.errors import InputFileError

# What a shell would replace by the output of another command;
# it stands as a placeholder that is never filled in.
_SUBSTITUTION = re.compile(r"\$\(\([^()]*\)\)|\$\((?:[^()$]|\$(?!\()|\([^()]*\))*\)|`[^`]*`")
_UNKNOWN = "${command}"
# A comment between words that go on, which is no word.
_NOTE = re.compile(r"`[ \t]*#[^`]*`")
# The number of a stream, which touches its redirection (``2>``; in ``2 >`` it is a word); quoted text before
# it is passed over.
_STREAM = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?<![^\s;&|()<>])[0-9]+(?=[<>])""", re.DOTALL)
# An array up to its bracket; in it, what is no bracket of its own.
_ARRAY = re.compile(r"((?:^|[\s;&|])[A-Za-z_][A-Za-z0-9_]*\+?=)\(")
_NO_BRACKET = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?<!\S)#.*""")
HANDED_AND = r"\&\&"
"""A word between commands that a program is handed, where its own shell reads it."""
_ENDS_BRANCH = frozenset({";;", ";&", ";;&"})
_BETWEEN = frozenset({";", "&", "&&", "|", "||", "(", ")", "|&", *_ENDS_BRANCH})
_TOUCHING = re.compile(r"[();]{2,}&?")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_KEYWORDS = frozenset({"if", "elif", "then", "while", "until", "do", "else", "{", "!"})
# Programs that start another one, with the words that they take before it.
_WRAPPERS = {"nohup": 0, "time": 0, "exec": 0, "env": 0, "sudo": 0, "export": 0, "uv": 1, "poetry": 1}

# Programs that start another one in a container, with options before it; none of these may set its GPUs, or
# a variable that counts.
_CONTAINERS = frozenset({"apptainer", "singularity", "singularity_wrapper", "docker", "podman"})
_OF_JOB = re.compile(
    "CUDA_VISIBLE|NPROC_PER_NODE|USE_V1|USE_MCA|USE_MEGATRON_BRIDGE|ALLOC_CONF|NO_CUDA_MEMORY|ACCELERATE_"
    r"|--gpus(?:=|\s+)(?!\W*all\b)"
)
# What starts processes of its own, once on each node behind ``srun`` with its options.
_LAUNCHERS = re.compile("accelerate|torchrun|deepspeed|tune|llamafactory-cli|swift")
# What `uv run` and its like start behind options of their own.
_STARTED = re.compile(rf"{_LAUNCHERS.pattern}|python3?|trl|megatron|axolotl|unsloth")


class Command(NamedTuple):
    """A simple command: its words, without assignments, wrappers and redirections; the variables of its
    environment that the text sets; and whether it runs ``for_sure``, in the shell of the text itself.
    """

    words: list[str]
    variables: dict[str, str]
    for_sure: bool


def commands(path: Path, text: str) -> Iterator[Command]:
    """Each simple command of ``text``.  Its variables are those that are exported before it, and those that
    stand before its program.  One that is also changed under a condition, in a loop or in a function has
    :func:`unknown` as its value.

    Raises:
        InputFileError: quotes that are not closed.
    """
    text = with_values(with_documents(text), str(path.parent))
    found = list(_simple_commands(path, text))
    unsure = {name for command in found if command.inside or command.chained for name in _changed(command)}
    environment = _Environment(frozenset(unsure))
    for command in found:
        environment.run(command)
        words = _without_keywords(command.words)
        sure = not (command.inside or command.chained)
        yield Command(_bare(words), {**environment.values(), **_assigned(words)}, sure)


def unknown(name: str) -> str:
    """The value of a variable that the text does not decide: its own name."""
    return f"${name}"


class _Command(NamedTuple):
    """A simple command.  ``inside``: a condition, loop, function or subshell; ``chained``: it stands behind
    ``&&``, so what it does holds for sure only in the rest of that chain.
    """

    words: list[str]
    inside: bool
    chained: bool


@dataclass(slots=True)
class _Environment:
    """Variables of the shell, as far as commands before have set them; ``unsure``: names without a known
    value; ``chain``: what the present chain of ``&&`` has exported.
    """

    unsure: frozenset[str]
    plain: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    chain: dict[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, str]:
        """What a program sees."""
        seen = self.exported & self.plain.keys()
        return {
            name: unknown(name) if name in self.unsure else self.plain[name] for name in seen
        } | self.chain

    def run(self, command: _Command) -> None:
        """Take what one command changes."""
        if not command.chained:
            self.chain = {}
        words = _without_keywords(command.words)
        exports = words[:1] == ["export"] and "-n" not in words
        for name, value in _changed(command).items():
            if value is not None:
                self.plain[name] = value
            elif not exports and name not in self.unsure:
                self.plain.pop(name, None)
                self.exported.discard(name)
            if exports:
                self.exported.add(name)
            if command.chained and not command.inside and name in self.exported & self.plain.keys():
                self.chain[name] = self.plain[name]


def _without_keywords(words: list[str]) -> list[str]:
    start = next((index for index, word in enumerate(words) if word not in _KEYWORDS), len(words))
    return words[start:]


def _changed(command: _Command) -> dict[str, str | None]:
    """Variables of the shell that a command sets, exports or unsets, with their new values if it has any."""
    words = _without_keywords(command.words)
    if words[:1] in (["export"], ["unset"]):
        if "-f" in words:
            return {}
        rest = [word for word in words[1:] if not word.startswith("-")]
    elif words and all(map(_ASSIGNMENT.match, words)):
        rest = words
    else:
        return {}
    found: dict[str, str | None] = {}
    for word in rest:
        name, mark, value = word.partition("=")
        # Behind += stands no whole value.
        plain = name.removesuffix("+")
        found[plain] = (unknown(plain) if name != plain else value) if mark else None
    return found


def _assigned(words: list[str]) -> dict[str, str]:
    """The variables that a command sets before its program."""
    found: dict[str, str] = {}
    for word in words:
        if _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            found[name.rstrip("+")] = value
        elif word not in _WRAPPERS:
            return found
    # Without a program the shell itself is changed.
    return {}


def _simple_commands(path: Path, text: str) -> Iterator[_Command]:
    """Each simple command with all of its words: lines behind a backslash joined, and those that a quote goes
    on in; a comment ends its line, whatever its last character is, but inside of a quote it is text.
    """
    pending, quote, inside, blocks = "", "", False, _Blocks()
    for written, depth in _without_arrays(with_depth(text)):
        inside = inside or depth > 0
        line, quote = uncommented(written, quote)
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        pending += line
        try:
            words = None if quote else _words(pending)
        except ValueError:
            words = None
        if words is None:
            pending += "\n"
            continue
        yield from _split(words, inside, blocks)
        pending, inside = "", False
    try:
        yield from _split(_words(pending), inside, blocks)
    except ValueError:
        raise InputFileError(path, "a quote is opened and not closed") from None


def _without_arrays(lines: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """The lines without the words of arrays that they set, which are no command; those of one that is never
    closed stay as they are written.
    """
    held, kept, level = list[tuple[str, int]](), "", 0
    for line, depth in lines:
        held.append((line, depth))
        outside, level = _outside_arrays(line, level)
        kept += outside
        if level == 0:
            yield kept, held[0][1]
            held, kept = [], ""
    yield from held


def _outside_arrays(line: str, level: int) -> tuple[str, int]:
    """What of a line is in no array, and how many brackets are open behind it, of ``level`` before."""
    kept, rest = "", line
    while True:
        if level == 0:
            found = None if rest.lstrip().startswith("#") else _ARRAY.search(rest)
            if found is None:
                return kept + rest, 0
            kept, rest, level = kept + rest[: found.start()] + found[1], rest[found.end() :], 1
        end = -1
        for index, character in enumerate(_NO_BRACKET.sub(lambda part: " " * len(part[0]), rest)):
            level += (character == "(") - (character == ")")
            if level == 0:
                end = index
                break
        if end < 0:
            return kept, level
        rest = rest[end + 1 :]


def _words(text: str) -> list[str]:
    text = _NOTE.sub("", text)
    while (shorter := _SUBSTITUTION.sub(_UNKNOWN, text)) != text:
        text = shorter
    text = _STREAM.sub(lambda found: found[1] or "", text).replace(HANDED_AND, f"'{HANDED_AND}'")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(lexer)


@dataclass(slots=True)
class _Blocks:
    """What is open in a text: ``brackets`` of subshells, and ``cases``, in whose ``pattern`` a bracket closes
    none: ``case $1 in a) ... ;; esac``.
    """

    brackets: int = 0
    cases: int = 0
    pattern: bool = False

    def take_word(self, command: list[str], word: str) -> None:
        """A word behind those of its ``command``."""
        first = _without_keywords(command)
        if not first:
            self.cases = max(0, self.cases + (word == "case") - (word == "esac"))
            self.pattern = self.pattern and word != "esac"
        elif first[0] == "case" and len(first) == 2 and word == "in":
            self.pattern = True

    def take_sign(self, sign: str) -> None:
        """What stands between commands."""
        if self.pattern:
            self.pattern = sign != ")"
        elif sign in _ENDS_BRANCH and self.cases:
            self.pattern = True
        else:
            self.brackets = max(0, self.brackets + (sign == "(") - (sign == ")"))


def _split(words: list[str], inside: bool, blocks: _Blocks) -> Iterator[_Command]:
    """Commands of a logical line; what stands in brackets or behind ``||`` is inside, too."""
    command, before = list[str](), ""
    for word in [*chain.from_iterable(map(_signs, words)), ";"]:
        if word not in _BETWEEN:
            blocks.take_word(command, word)
            command.append(word)
            continue
        yield _Command(command, inside or blocks.brackets > 0 or before == "||", before == "&&")
        blocks.take_sign(word)
        command, before = [], word


def _signs(word: str) -> list[str]:
    """Signs that touch each other one by one: ``);;`` and ``))``; the brackets of a function are its own."""
    return re.findall(r";;&?|;&|.", word) if word != "()" and _TOUCHING.fullmatch(word) else [word]


def _launches(words: list[str]) -> bool:
    """Whether these words start processes of their own, also as a module of Python."""
    return _LAUNCHERS.fullmatch(as_program(words)[0]) is not None


def _bare(command: list[str]) -> list[str]:
    """A command without what stands before its program, and without redirections."""
    words = list(command)
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in _WRAPPERS):
        del words[: 1 + _WRAPPERS.get(words[0], 0)]
    if words[:1] == ["srun"]:
        del words[: next((index for index in range(len(words)) if _launches(words[index:])), 0)]
    elif words and (words[0].startswith("-") or words[0] in _CONTAINERS):
        start = next((index for index, word in enumerate(words) if _STARTED.fullmatch(word)), 0)
        if not _OF_JOB.search(" ".join(words[:start])):
            del words[:start]
    end = next((index for index, word in enumerate(words) if word and set(word) <= set("<>&")), len(words))
    return words[:end]
