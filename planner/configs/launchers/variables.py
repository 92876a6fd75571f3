"""Variables that a shell text sets to a literal, put in where they are used.  Nothing is run.

Only what cannot be otherwise is put in: a variable whose value is set on lines of its own, outside of
conditions, loops and functions.  What one of these may change stays as it is written.  Where the text gives a
variable or an argument of its own a default (``${NAME:-value}``), it has that default, as if nothing outside
sets it; a loop over arguments does not run, and a condition asks what then is known
(:mod:`planner.configs.launchers.conditions`): :func:`takes_defaults`.
Source: POSIX.1-2017 chapter 2; arrays of bash 5.2; ``expr`` of whole numbers.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from planner.configs.launchers.conditions import decided, unrolled
from planner.configs.launchers.shell_texts import uncommented
from planner.errors import InputFileError
from planner.files.reading import read_text
from planner.units import KIB

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_SETS = rf"^[ \t]*(?:export[ \t]+|declare[ \t]+-a[ \t]+)?({_NAME})"
# Quoted parts may touch others: "a "$B" c".
_SET = re.compile(
    rf"{_SETS}=(\S*|\"[^\"]*\"(?:[^\s\"'`;|&()]*\"[^\"]*\")*|'[^']*')[ \t]*(?:#.*)?$", re.DOTALL
)
_SET_ARRAY = re.compile(rf"{_SETS}(\+?)=\(([^()`;|&<>]*)\)[ \t]*(?:#.*)?$", re.DOTALL)
# A quote or a list that ends on a later line.
_GOES_ON = re.compile(
    rf"{_SETS}(?:=(?P<quote>\")[^\"]*(?:\"[^\"]*\"[^\"]*)*$|=(?P<single>')[^']*$|\+?=\((?!.*\)))"
)
_SET_ANYWHERE = re.compile(
    rf"(?:^|[\s;&|(])(?:(?:for|select)[ \t]+)?({_NAME})(?:(?:\[[^\]]*\])?\+?=|[ \t]+in\b)"
)
# What sets a variable in quotes, too.
_DECLARES = re.compile(r"^[ \t]*(?:export|declare|typeset|local|readonly)\b")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
# Arithmetic that sets a variable: ``((N*=2))``, ``((N++))``, ``let N=2``.
_RECKONED = re.compile(r"\(\((.*?)\)\)|(?:^|[\s;&|])let[ \t]+(.*)")
_SETS_IN_ARITHMETIC = re.compile(
    rf"({_NAME})(?:\[[^\]]*\])?[ \t]*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)[ \t]*({_NAME})"
)
_PRINTED = re.compile(rf"\bprintf[ \t]+-v[ \t]+({_NAME})")
# What may set any variable; ``set`` with options of the shell sets none, nor does what prepares a shell or an
# environment of Python.
_FROM_ELSEWHERE = re.compile(
    r"^[ \t]*(?:eval(?=[ \t])(?!.*\bhook\b)|set(?=[ \t]+--(?:[ \t]|$))"
    r"|(?:source|\.)(?=[ \t])(?!.*(?:\bactivate|bashrc|profile|conda\.sh)\b))"
)
_SOURCES = re.compile(r"^[ \t]*(?:source|\.)[ \t]+\"?([\w./:,@%+=-]{1,1000})\"?[ \t]*(?:#.*)?$")
_MOST_SOURCED = 64 * KIB
# What sets, or takes away, the variables that it names.
_NAMES_THEM = re.compile(r"(?:^|[\s;&|(])(?:read|unset|mapfile|readarray)((?:[ \t]+[^\s;&|<>]+)*)")
_SHIFTS = re.compile(r"(?:^|[\s;&|])(?:shift|getopts)\b")
# So long that no path is longer, and that variables of variables do not grow without an end.
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+=-]{0,1000}")
# Several words, among them variables that stay as they are written.
_WORDS = re.compile(rf"(?:[A-Za-z0-9_./:,@%+=\s-]|\$\{{{_NAME}\}}|\${_NAME}\b){{0,8000}}")
_LATER = re.compile(r"\\\$\([^()]*\)")
_ALL = rf"\$\{{({_NAME})\[[@*]\]\}}"
# All of an array, also where it may be empty (``${A[@]+"${A[@]}"}``), or a variable.
_USED = re.compile(
    rf"\"{_ALL}\"|{_ALL}|\$\{{(?P<name>{_NAME})\[@\]:?\+\"?\$\{{(?P=name)\[@\]\}}\"?\}}"
    rf"|\$(?:\{{({_NAME})\}}|({_NAME}))"
)
# One word of an array by its number, how many it has, and the numbers of all.
_WORD = re.compile(rf"\$\{{({_NAME})\[\$?\{{?(\d{{1,4}}|{_NAME})\}}?\]\}}")
# A variable in which one sign stands for another: ``${GPUS//,/ }``.
_REPLACED = re.compile(rf"\$\{{({_NAME})//([,:;])/([ ,:;]?)\}}")
# Variables, and words that the shell makes others of.
_DEPENDS = re.compile(r"[${*?\[~]")
_LENGTH = re.compile(rf"\$\{{#({_NAME})\[[@*]\]\}}")
_NUMBERS = re.compile(rf"\"?\$\{{!({_NAME})\[[@*]\]\}}\"?")
_UNSET = re.compile(rf"\$(?:\{{({_NAME}|\d+)\}}|({_NAME}|\d))")
# All arguments of the script, or those from one on.
_ARGUMENTS = re.compile(r"(?<!\S)(?:\"\$(?:@|\{@(?::\d+)?\})\"|\$(?:@|\{@(?::\d+)?\}))(?!\S)")
_DEFAULT = re.compile(rf"\$\{{({_NAME}|\d+)(:?)([-=])([^{{}}$]*)\}}")
# The folder of the script itself, and a path as ``pwd`` prints it.
_ITSELF = r"\"?(?:\$0|\$\{(?:0|BASH_SOURCE(?:\[0\])?(?::-\$0)?)\}|\$BASH_SOURCE)\"?"
_ITS_FOLDER = re.compile(
    rf"\$\([ \t]*dirname[ \t]+(?:--[ \t]+)?(?:{_ITSELF}"
    rf"|\"?\$\([ \t]*(?:realpath|readlink[ \t]+-f)[ \t]+{_ITSELF}[ \t]*\)\"?)[ \t]*\)"
)
_PRINTED_FOLDER = re.compile(
    r"\$\([ \t]*cd[ \t]+(?:--[ \t]+)?\"?([\w./:,@%+=-]+)\"?[ \t]*"
    r"(?:\d?>[ \t]*/dev/null[ \t]*(?:2>&1[ \t]*)?)?(?:&&|;)[ \t]*pwd(?:[ \t]+-P)?[ \t]*\)"
)
# The folder of a path, its last part, and the folder of a package of Python.
_OF_PATH = re.compile(r"\$\([ \t]*(dirname|basename)[ \t]+(?:--[ \t]+)?\"?([\w./:,@%+=-]{1,1000})\"?[ \t]*\)")
_OF_PACKAGE = re.compile(
    r"\$\([^()$`]{0,80}\bpython3?[ \t]+-c[ \t]+(?P<quote>['\"])[ \t]*import (?P<name>\w+);[ \t]*"
    r"print\((?P=name)\.__path__\[0\]\)[ \t]*(?P=quote)[ \t]*\)"
)
# What counts the GPUs of a machine, and nothing more.
_COUNTS_GPUS = re.compile(
    r"\$\([ \t]*(?:python3?[ \t]+-c[ \t]+(?P<quote>['\"])[ \t]*(?:import torch|from torch import cuda)[ \t]*;"
    r"[ \t]*print\((?:torch\.)?cuda\.device_count\(\)\)[ \t]*;?[ \t]*(?P=quote)"
    r"|nvidia-smi[ \t]+(?:-L|--list-gpus|--query-gpu=\w+[ \t]+--format=csv,noheader)[ \t]*"
    r"(?:2>[ \t]*/dev/null[ \t]*)?\|[ \t]*wc[ \t]+-l)[ \t]*\)"
)
EVERY_GPU = "gpu"
"""Stands for the number of GPUs in a machine, as torchrun has it."""
_FUNCTION = r"^[ \t]*(?:function\b|[\w-]+[ \t]*\(\)).*"
_OPENS = re.compile(rf"^[ \t]*(?:if|for|while|until|case|select)\b|{_FUNCTION}\{{|\{{[ \t]*$")
_CLOSES = re.compile(
    r"^[ \t]*(?:fi|done|esac|\})(?=$|[\s;|&>])|;[ \t]*(?:fi|done|esac)[ \t]*(?:$|[;|&>])"
    rf"|{_FUNCTION};[ \t]*\}}[ \t]*$"
)
_ONCE = re.compile(r"^[ \t]*(?:if|case)\b")
# A loop over the arguments of the script, of which there are none.
_OVER_ARGUMENTS = re.compile(
    r"^[ \t]*while[ \t]+(?:getopts\b|(?:\[\[?|\(\(|test\b)[ \t]*(?:\"?\$(?:#|\{#\})\"?[ \t]*"
    r"(?:(?:-g[te]|-ne|!=|>=?)[ \t]*[01]\b|[\])])"
    r"|(?:-n[ \t]+)?\"?\$\{?1\}?\"?[ \t]*(?:!=[ \t]*\"\"[ \t]*)?\]))"
)
_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*[\\'\"]?([A-Za-z_]\w*)")
_DIGITS = 9
# Whole numbers with signs between them, in ``$(( ))`` and ``$[ ]``, and as words behind ``expr``.
# A shell reads one with a leading zero as octal.
_NUMBER = rf"(?:0|[1-9]\d{{0,{_DIGITS - 1}}})(?!\d)"
_SUM = rf"{_NUMBER}(?:[ \t]*[-+*/%][ \t]*{_NUMBER}){{0,6}}"
_ARITHMETIC = re.compile(
    rf"\$\(\([ \t]*({_SUM})[ \t]*\)\)"
    rf"|\$\([ \t]*expr[ \t]+({_NUMBER}(?:[ \t]+\\?[-+*/%][ \t]+{_NUMBER}){{1,4}})[ \t]*\)"
)
_IN_ARITHMETIC = re.compile(r"\$\(\(((?:[^()]|\([^()]*\))*)\)\)|\$\[([^\[\]]*)\]")
_IN_BRACKETS = re.compile(rf"\([ \t]*({_SUM})[ \t]*\)")
_BARE_NAME = re.compile(rf"(?<![$\w]){_NAME}\b")
_MOST_WORDS, _MOST_TURNS = 8_000, 200
_TERM = re.compile(r"\d+|[-+*/%]")


def with_values(text: str, folder: str = "") -> str:
    """``text`` with literal variables and the arithmetic of whole numbers put in, line by line, and without
    loops over arguments that nobody gives; ``folder``: that of the script, where it is known, from which
    files are read that the shell is told to ``source``.
    """
    return _filled(_without_arguments(text), folder)[0]


def takes_defaults(text: str, folder: str = "") -> bool:
    """Whether a value of :func:`with_values` is a default that something outside may change."""
    alone = _without_arguments(text)
    return alone != text or _filled(alone, folder)[1].took_default


def _without_arguments(text: str) -> str:
    """Empty lines in place of loops that go on while the script has arguments."""
    if not any(map(_OVER_ARGUMENTS.match, text.splitlines())):
        return text
    lines, inside = list[str](), 0
    for line, depth in with_depth(text):
        if depth < inside:
            inside = 0
        if not inside and _OVER_ARGUMENTS.match(line):
            inside = depth
        lines.append("" if inside else line)
    return "\n".join(lines)


@dataclass(slots=True)
class Known:
    """What is known at a line: the script's ``folder``; ``values`` of variables and ``arrays``, as a shell
    would read them again.  ``changed``: names that the text has set to something else.  ``unsure``: names
    that are also set inside of a loop or a function.  ``elsewhere``: what came from another text may have set
    any name.  ``shifted``: arguments have moved.
    """

    unsure: frozenset[str]
    folder: str
    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    elsewhere: bool = False
    shifted: bool = False
    took_default: bool = False

    def fill(self, line: str, depth: int) -> str:
        """A line with what is known put in; in a function arguments are its own."""
        line = _REPLACED.sub(self._with_other_signs, line)
        line = _LENGTH.sub(lambda found: self._counted(found, len), _COUNTS_GPUS.sub(EVERY_GPU, line))
        line = _NUMBERS.sub(lambda found: self._counted(found, _numbered), line)
        line = _WORD.sub(self._word, _USED.sub(self._value, line))
        if not depth and not self.elsewhere and (without := _ARGUMENTS.sub("", line)) != line:
            self.took_default, line = True, without
        while (filled := _DEFAULT.sub(lambda found: self._default(found, depth), line)) != line:
            line = filled
        if self.folder:
            line = _PRINTED_FOLDER.sub(r"\1", _ITS_FOLDER.sub(self.folder, line))
        line = _OF_PATH.sub(_part_of_path, _OF_PACKAGE.sub(r"\g<name>", line))
        return _computed(_IN_ARITHMETIC.sub(self._reckoned, line))

    def tested(self, text: str) -> str:
        """A condition with what is known put in, and nothing for what nothing sets."""
        return _UNSET.sub(self._unset, self.fill(text, 0))

    def forget(self, line: str, *, inside: bool) -> None:
        """Take away what a line may change; ``inside``: a condition, loop or function."""
        for name in _set_by(line):
            self.values.pop(name, None)
            self.changed.add(name)
            if inside:
                self.arrays.pop(name, None)
        self.shifted = self.shifted or bool(_SHIFTS.search(line))
        if _FROM_ELSEWHERE.match(line):
            self.values.clear()
            self.arrays.clear()
            self.elsewhere = True

    def set(self, written: str) -> bool:
        """Take the value that a statement gives; whether it was that of an array."""
        one, several = _SET.match(written), _SET_ARRAY.match(written)
        if several and several[1] not in self.unsure:
            name, more = several[1], several[2]
            words = " ".join(uncommented(each)[0].rstrip("\\ \t") for each in several[3].splitlines())
            if (not more or name in self.arrays) and len(words) < _MOST_WORDS:
                self.arrays[name] = f"{self.arrays[name]} {words}" if more else words
                return True
        if one and one[1] not in self.unsure:
            value = one[2].strip("\"'").replace("\\\n", " ").replace("\n", " ")
            if one[2].startswith('"'):
                # What another shell puts in later.
                value = _LATER.sub("$command", value.replace('"', "")).replace("\\$", "$")
            if _PLAIN.fullmatch(value) or (" " in value and _WORDS.fullmatch(value)):
                self.values[one[1]] = value
        return False

    def _value(self, found: re.Match[str]) -> str:
        array = found[1] or found[2] or found[3]
        return self.arrays.get(array, found[0]) if array else self.values.get(found[4] or found[5], found[0])

    def _with_other_signs(self, found: re.Match[str]) -> str:
        value = self.values.get(found[1])
        return found[0] if value is None else value.replace(found[2], found[3])

    def _counted(self, found: re.Match[str], count: Callable[[list[str]], object]) -> str:
        words = _words_of(self.arrays.get(found[1]))
        return found[0] if words is None else str(count(words))

    def _word(self, found: re.Match[str]) -> str:
        words, number = _words_of(self.arrays.get(found[1])), self.values.get(found[2], found[2])
        here = words is not None and number.isdecimal() and int(number) < len(words)
        return words[int(number)] if words is not None and here else found[0]

    def _default(self, found: re.Match[str], depth: int) -> str:
        name, also_empty, sign, default = found.groups()
        if name in self.values and (self.values[name] or not also_empty):
            return self.values[name]
        changed = name in self.changed and name not in self.values
        own = name.isdecimal() and (depth or self.shifted)
        if self.elsewhere or changed or own or name in self.unsure:
            return found[0]
        self.took_default = True
        default = default.strip("\"'")
        if sign == "=" and not depth and _PLAIN.fullmatch(default):
            self.values[name] = default
        return default

    def _unset(self, found: re.Match[str]) -> str:
        name = found[1] or found[2]
        own = name.isdecimal() and self.shifted
        if self.elsewhere or own or name in self.changed or name in self.unsure or name in self.values:
            return found[0]
        self.took_default = True
        return ""

    def _reckoned(self, found: re.Match[str]) -> str:
        """Arithmetic, where a name stands for its value and brackets come first."""
        text = _BARE_NAME.sub(lambda name: self.values.get(name[0]) or name[0], found[1] or found[2])
        while (shorter := _IN_BRACKETS.sub(lambda part: _total(part[1], part[0]), text)) != text:
            text = shorter
        return f"$(({text}))"


def _part_of_path(found: re.Match[str]) -> str:
    """What ``dirname`` or ``basename`` prints; the folder of one that is here is the one above it."""
    path = PurePosixPath(found[2])
    if found[1] == "basename":
        return path.name
    return ".." if path == PurePosixPath() else str(path.parent)


def _words_of(array: str | None) -> list[str] | None:
    """The words of an array, where none of them depends on anything."""
    try:
        return None if array is None or _DEPENDS.search(array) else shlex.split(array)
    except ValueError:
        return None


def _numbered(words: Sequence[str]) -> str:
    return " ".join(map(str, range(len(words))))


def _filled(text: str, folder: str, turns: int = _MOST_TURNS) -> tuple[str, Known]:
    """The lines as :func:`with_values` has them, and what is known behind the last one; bodies of loops over
    literals run so many ``turns`` in all.
    """
    lines, known = list[str](), Known(_set_again(text), folder if _PLAIN.fullmatch(folder) else "")
    goes_on, pending, end = False, list[str](), ""
    left = list(with_depth(text))
    for number in range(len(left)):
        if turns and not goes_on and (longer := _written_out(left, number, known, turns)) is not None:
            return _filled("\n".join(longer[0]), folder, turns - longer[1])
        first = left[number][1] == 1 and not goes_on
        if first and (block := decided(left, number, known.tested)):
            left[number : number + len(block)] = block
        line, depth = left[number]
        filled = line if line.lstrip().startswith("#") else known.fill(line, depth)
        if end == ")" and pending:
            filled = uncommented(filled)[0]
        lines.append(filled)
        known.forget(line, inside=depth > 0)
        if pending:
            pending.append(filled)
            if not re.search(rf"{re.escape(end)}[ \t]*$", filled):
                continue
            if known.set("\n".join(pending)):
                lines[-len(pending) :] = [""] * len(pending)
            pending, goes_on = [], False
            continue
        starts = None if goes_on or depth else _GOES_ON.match(filled)
        if starts:
            pending, end = [filled], starts["quote"] or starts["single"] or ")"
        elif not goes_on and not depth and known.set(filled):
            lines[-1] = ""
        goes_on = line.endswith("\\")
    return "\n".join(lines), known


def _written_out(
    left: Sequence[tuple[str, int]], number: int, known: Known, turns: int
) -> tuple[list[str], int] | None:
    """The lines with a loop over literals, or a file that is sourced, written out where it stands, and how
    many of the ``turns`` that takes; ``None`` where there is none.
    """
    line, depth = left[number]
    if depth == 1:
        return unrolled(left, number, partial(known.fill, depth=0), turns)
    sourced = None if depth or _FROM_ELSEWHERE.match(line) is None else _sourced(known.fill(line, 0), known)
    if sourced is None:
        return None
    return [*(each for each, _ in left[:number]), *sourced, *(each for each, _ in left[number + 1 :])], 1


def _sourced(line: str, known: Known) -> list[str] | None:
    """The lines of a file beside the script, or in the present folder, that a line has the shell read."""
    found = _SOURCES.match(line)
    if found is None:
        return None
    beside = Path(known.folder or ".")
    # A file of another machine may be the one beside the script.
    for path in (beside / found[1], Path(found[1]), beside / Path(found[1]).name):
        with suppress(InputFileError):
            return read_text(path, _MOST_SOURCED).splitlines()
    return None


def _computed(line: str) -> str:
    """Sums, products and quotients of whole numbers."""
    return _ARITHMETIC.sub(lambda found: _total(found[1] or found[2], found[0]), line)


def _total(text: str, otherwise: str) -> str:
    """From the left, products and quotients first; a quotient by nothing stays as it is written."""
    terms = _TERM.findall(text)
    total, part, sign = 0, int(terms[0]), 1
    for operator, word in zip(terms[1::2], terms[2::2], strict=True):
        number = int(word)
        if operator in "/%" and number == 0:
            return otherwise
        if operator in "+-":
            total, part, sign = total + sign * part, number, 1 if operator == "+" else -1
        else:
            part = part * number if operator == "*" else part // number if operator == "/" else part % number
    return str(total + sign * part)


def _set_again(text: str) -> frozenset[str]:
    """Variables that a loop or a function sets, whose lines may run behind others."""
    names, again = set[str](), list[bool]()
    for line, depth in with_depth(text):
        again = [*again[:depth], *[_ONCE.match(line) is None] * (depth - len(again))]
        names.update(_set_by(line) if any(again) else ())
    return frozenset(names)


def _set_by(line: str) -> Iterator[str]:
    """Variables that a line sets, by arithmetic and ``printf -v`` too; a comment sets none."""
    if line.lstrip().startswith("#"):
        return
    yield from _SET_ANYWHERE.findall(line if _DECLARES.match(line) else _QUOTED.sub(" ", line))
    yield from _PRINTED.findall(line)
    for names in _NAMES_THEM.findall(_QUOTED.sub(" ", line)):
        yield from re.findall(rf"(?<![\w-]){_NAME}\b", names) or ("REPLY", "MAPFILE")
    for in_brackets, behind_let in _RECKONED.findall(line):
        text = in_brackets or behind_let
        yield from (name or other for name, other in _SETS_IN_ARITHMETIC.findall(text))


def with_depth(text: str) -> Iterator[tuple[str, int]]:
    """Each line with the number of conditions, loops and functions that it is in, its own included."""
    depth, document = 0, ""
    for line in text.splitlines():
        if document:
            # Text that a program is given: its braces and words open nothing here.
            yield line, depth
            document = "" if line.strip() == document else document
            continue
        bare = uncommented(line)[0].rstrip()
        depth += bool(_OPENS.search(bare))
        yield line, depth
        if _CLOSES.search(bare):
            depth = max(0, depth - 1)
        found = _DOCUMENT.search(bare)
        document = found[1] if found else ""
