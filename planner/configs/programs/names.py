"""The names that a program has while it is gone through, and what is told where it cannot be."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planner.configs.programs.source import Source
from planner.configs.programs.values import MOST_MEMBERS, Library, unknown
from planner.errors import InputFileError, NotModelledError, show

# Expressions, statements and parts of them that are gone through in all; programs that train take a few
# thousand.
_MOST_LOOKS = 500_000
FILE, ELSEWHERE = "__the file__", "__names of other functions__"
"""Under which names have their file, and those that a function sets elsewhere: no program can say these."""


def names_of_file(path: Path, name: str) -> dict[str, Any]:
    """The names that a file has before its first statement."""
    return {"__name__": name, "__file__": str(path), FILE: path}


def names_in(scope: dict[str, Any]) -> dict[str, Any]:
    """The names of a function that a program can say."""
    return {name: value for name, value in scope.items() if not name.startswith("__")}


class Names:
    """What the names of a program stand for.

    ``scopes``: the names that can be seen, those of the file first; ``elsewhere``: a file beside the program
    does what is not known.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.elsewhere = source, False
        self.scopes: list[dict[str, Any]] = [names_of_file(source.path, "__main__")]
        self._starred, self._left = "", _MOST_LOOKS
        self._last: dict[str, Any] = {}

    def look(self, parts: int = 1) -> None:
        """Count what is gone through: a text of a few lines may go on for hours.

        Raises: InputFileError: that is too much.
        """
        self._left -= parts
        if self._left < 0:
            raise InputFileError(self.source.path, "more than can be gone through: without end, or nearly")

    def parts_of(self, node: ast.AST) -> Iterator[ast.AST]:
        """A statement or an expression, and all that is in it."""
        for each in ast.walk(node):
            self.look()
            yield each

    def refused(self, node: ast.AST, why: str) -> NotModelledError:
        """The error about a statement; ends with how the program is asked itself."""
        path = self.source.path
        run = (
            f": measure trace --gpu NAME -- python {shlex.quote(show(str(path)))} runs it"
            if path.suffix == ".py"
            else ""
        )
        line = getattr(node, "lineno", 0)
        self.elsewhere |= self.source.is_of_module(line)
        return NotModelledError(f"{self.source.place(line)}: {show(unknown(node).text)}: {why}{run}")

    @contextmanager
    def within(self, scopes: Sequence[dict[str, Any]]) -> Iterator[None]:
        """Names are those of ``scopes`` meanwhile."""
        before, self.scopes = self.scopes, list(scopes)
        try:
            yield
        finally:
            self.scopes = before

    def stay(self) -> None:
        """Keep the names of the function that makes the trainer, or trains."""
        if len(self.scopes) > 1:
            self._last |= self.scopes[-1]

    def bind(self, name: str, value: Any) -> None:
        """Give a name a value."""
        here = self.scopes[-1]
        here.get(ELSEWHERE, {}).get(name, here)[name] = value

    def looked_up(self, name: str) -> Any:
        """What a name stands for."""
        for scope in reversed(self.scopes):
            if name in scope:
                found = scope[name]
                # Whoever asks may look at each of them.
                self.look(min(len(found), MOST_MEMBERS) if isinstance(found, list | dict) else 1)
                return found
        # Of classes that every name of a package was imported with.
        package = self._starred if name[:1].isupper() else ""
        return Library(f"{package or 'builtins'}.{name}")
