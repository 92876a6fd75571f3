"""The code of a program or a notebook, taken apart but never run."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from planner.errors import InputFileError
from planner.files.reading import read_text
from planner.files.structured import json_value
from planner.units import KIB, MEGA, MIB

SUFFIXES = (".py", ".ipynb")
# Programs that train have a few hundred lines; outputs of a notebook may have pictures.
_MAX_BYTES = {".py": 256 * KIB, ".ipynb": 8 * MIB}
# What a line of IPython begins with that is no Python: magics, shell commands, help.
_NO_PYTHON = ("%", "!", "?")
# The first line of a cell that is handed to another program whole; these run it as Python.
_OF_OTHERS = re.compile(r"\s*%%(?!capture|time|prun|memit)")
_SETS_VARIABLE = re.compile(r"%(?:set_)?env[ \t]+(\w+)(?:[ \t]*=[ \t]*|[ \t]+)(.*\S)[ \t]*")
_MOST_MODULES, _MOST_LINES, _MOST_BITS = 40, 10 * MEGA, 10_000
_MOST_ABOVE = 3
_TRAINS = re.compile(r"Trainer\b|from_pretrained|get_peft|Arguments\(|Config\(")


@dataclass(frozen=True, slots=True)
class Source:
    """Statements of a program.  ``starts``: of a notebook, the line at which each cell of code begins;
    ``modules``: files of its own that it imports, whose lines are counted on from the next multiple of a
    number that no file reaches.
    """

    path: Path
    tree: ast.Module
    starts: tuple[int, ...] = ()
    modules: list[Source] = field(default_factory=list)

    def module(self, path: Path) -> ast.Module | None:
        """The statements of a file that it imports; nothing where it cannot be read, or too many are."""
        if len(self.modules) >= _MOST_MODULES:
            return None
        try:
            found = read_source(path)
        except InputFileError:
            return None
        self.modules.append(found)
        ast.increment_lineno(found.tree, len(self.modules) * _MOST_LINES)
        return found.tree

    def is_of_module(self, line: int) -> bool:
        """Whether a line is one of a file that it imports."""
        return line > _MOST_LINES

    def place(self, line: int) -> str:
        """The file and the line, of a notebook with the cell."""
        module, line = divmod(line, _MOST_LINES)
        if module:
            return self.modules[module - 1].place(line)
        if not self.starts:
            return f"{self.path}:line {line}"
        cell = sum(start <= line for start in self.starts)
        return f"{self.path}:cell {cell} line {line - self.starts[cell - 1] + 1}"


def folders_above(program: Path) -> list[Path]:
    """Where files are looked for that are not in the program's folder: those from which it may be started."""
    return list(program.absolute().parents)[1 : _MOST_ABOVE + 1]


def read_source(path: Path) -> Source:
    """The code of a ``.py`` file or of a notebook's cells, one after the other.

    Raises:
        InputFileError: unreadable, too large, empty, not Python, or nested deeper than can be read.
    """
    text, starts = read_text(path, _MAX_BYTES[path.suffix]), tuple[int, ...]()
    if path.suffix == ".ipynb":
        text, starts = _joined(_cells(path, text))
    try:
        tree = _parsed(text)
    except SyntaxError as error:
        line = f"line {error.lineno}: " if error.lineno else ""
        raise InputFileError(path, f"not Python 3: {line}{error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputFileError(path, f"not Python that can be read: {type(error).__name__}") from None
    if any(map(_cannot_be_written, ast.walk(tree))):
        raise InputFileError(path, "not Python that can be read: a number of thousands of digits")
    if not tree.body:
        raise InputFileError(path, "holds no statement: give the program that trains")
    return Source(path, tree, starts)


def _cannot_be_written(node: ast.AST) -> bool:
    """Whether it is a number so long that Python makes no text of it, as one of ``0x`` may be."""
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, int) and value.bit_length() > _MOST_BITS


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        # What Python says of the user's text, such as of a wrong escape, is no word of ours.
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _cells(path: Path, text: str) -> list[str]:
    try:
        found = json_value(path, text)["cells"]
        texts = [("".join(cell["source"]), cell["cell_type"]) for cell in found]
    except (KeyError, TypeError):
        raise InputFileError(path, "not a notebook: a JSON file with cells, each with a source") from None
    return [_python_of(text) for text, kind in texts if kind == "code"]


def _python_of(cell: str) -> str:
    """A cell without what is no Python; what goes on behind a backslash goes with its line.

    Blank where it is for another program (``%%bash``), or is no Python and says nothing of a training.
    """
    if _OF_OTHERS.match(cell):
        return "\n" * cell.count("\n")
    code = _without_magics(cell)
    try:
        _parsed(code)
    except (SyntaxError, ValueError):
        return code if _TRAINS.search(code) else "\n" * code.count("\n")
    return code


def _without_magics(cell: str) -> str:
    lines, goes_on = list[str](), False
    for line in cell.splitlines():
        body = line.lstrip()
        dropped = body.startswith(_NO_PYTHON)
        kept = f"{line[: len(line) - len(body)]}{_python_for(body)}" if dropped else line
        lines.append("" if goes_on else kept)
        goes_on = (goes_on or dropped) and body.endswith("\\")
    return "\n".join(lines)


def _python_for(magic: str) -> str:
    """The Python of a line that IPython has taken: a variable of the environment, or nothing."""
    found = _SETS_VARIABLE.fullmatch(magic)
    return f"__import__('os').environ[{found[1]!r}] = {found[2]!r}" if found else "pass"


def _joined(cells: list[str]) -> tuple[str, tuple[int, ...]]:
    starts, line = list[int](), 1
    for cell in cells:
        starts.append(line)
        line += cell.count("\n") + 1
    return "\n".join(cells), tuple(starts)
