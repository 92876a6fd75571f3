"""Files of a program's own that it imports: found beside it, and gone through as the program is."""

from __future__ import annotations

import ast
import os
import sys
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.configs.programs.classes import Classes
from planner.configs.programs.names import FILE, names_of_file
from planner.configs.programs.python_calls import Card
from planner.configs.programs.source import Source, folders_above
from planner.configs.programs.values import Library, Module, is_library


class Modules(Classes):
    """What imports bring: names of libraries, or those of the program's own files."""

    def __init__(self, source: Source, card: Card, words: tuple[str, ...] | None = None) -> None:
        super().__init__(source, card, words)
        self.scopes_of_modules: dict[Path, dict[str, Any]] = {}
        # Python looks above the program's folder only where it is told to.
        self._above = any(isinstance(each, ast.Attribute) and ast.unparse(each) == "sys.path" for each in
                          ast.walk(source.tree))  # fmt: skip

    @abstractmethod
    def names_made_by(self, tree: ast.Module, scope: dict[str, Any]) -> None:
        """Go through the statements of a file, which put names into ``scope``."""

    def imports_own_files(self) -> bool:
        """Whether the program imports a file of its own."""
        for each in ast.walk(self.source.tree):
            if isinstance(each, ast.ImportFrom) and self.module_file(each.module or "", each.level):
                return True
            if isinstance(each, ast.Import) and any(self.module_file(one.name, 0) for one in each.names):
                return True
        return False

    def files_of_it(self) -> list[tuple[dict[str, Any], ast.Module]]:
        """The names and the statements of the program and of each of its own files that it imports."""
        scopes = (self.scopes[0], *self.scopes_of_modules.values())
        trees = (self.source.tree, *(each.tree for each in self.source.modules))
        return list(zip(scopes, trees, strict=False))

    def imports(self, node: ast.Import | ast.ImportFrom) -> None:
        """Bind what is imported."""
        module, level = "", 0
        if isinstance(node, ast.ImportFrom):
            module, level = node.module or "", node.level
        if any(alias.name == "*" for alias in node.names) and self.module_file(module, level) is None:
            self._starred = module
        for name, value in self.brought(node):
            self.bind(name, value)
        self.packages |= {(module or alias.name).partition(".")[0] for alias in node.names}

    def brought(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Any]]:
        """Names that an import binds, with what they stand for."""
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                yield from self._from(node.module or "", node.level, alias)
            else:
                own = self._module(alias.name, 0)
                named = alias.name if alias.asname else alias.name.partition(".")[0]
                # Of ``import a.b`` the name is ``a``, of which nothing but ``b`` is known.
                whole = own if alias.asname or "." not in alias.name else None
                yield alias.asname or named, whole or Library(named)

    def _from(self, module: str, level: int, alias: ast.alias) -> Iterator[tuple[str, Any]]:
        own = self._module(module, level)
        bound = alias.asname or alias.name
        if own is not None and alias.name == "*":
            yield from ((name, value) for name, value in own.scope.items() if not name.startswith("_"))
        elif own is not None and alias.name in own.scope:
            yield bound, own.scope[alias.name]
        else:
            inner = self._module(f"{module}.{alias.name}".strip("."), level)
            yield bound, inner or Library(f"{module}.{alias.name}" if module else alias.name)

    def _module(self, name: str, level: int) -> Module | None:
        path = self.module_file(name, level)
        if path is None:
            return None
        if path not in self.scopes_of_modules:
            tree = self.source.module(path)
            if tree is None:
                return None
            scope = names_of_file(path, name)
            self.scopes_of_modules[path] = scope
            self.names_made_by(tree, scope)
        return Module(self.scopes_of_modules[path])

    def module_file(self, name: str, level: int) -> Path | None:
        """The file of a module of the program's own; nothing of a library's."""
        parts = [each for each in name.split(".") if each]
        program = self.source.path.absolute()
        if level:
            places = list(Path(self.scopes[0][FILE]).absolute().parents)[level - 1 : level]
        elif not parts or parts[0] in sys.stdlib_module_names or is_library(parts[0]):
            return None
        else:
            above = folders_above(program) if len(parts) > 1 or self._above else []
            places = [program.parent, Path.cwd(), *above]
        ends = [Path(*parts, "__init__.py")] + ([Path(*parts).with_suffix(".py")] if parts else [])
        found = (place / end for place in places for end in ends)
        there = (each for each in found if os.path.isfile(each))  # noqa: PTH113 - long names
        return next((each for each in there if each != program), None)
