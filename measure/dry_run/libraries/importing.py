"""Changes to a module at the moment when the program itself imports it."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]
Around = Callable[[], AbstractContextManager[Any]]


class OnImport(importlib.abc.MetaPathFinder):
    """Runs a change right after the code of a module has run.
    Nothing is imported that the program does not import.
    """

    def __init__(self) -> None:
        self._changes: dict[str, list[Change]] = defaultdict(list)
        self._around: dict[str, Around] = {}
        self._looking: set[str] = set()

    def add(self, name: str, change: Change) -> None:
        """Change the module ``name`` when it comes, or now if it is there."""
        if name in sys.modules:
            change(sys.modules[name])
        else:
            self._changes[name].append(change)

    def wrap(self, name: str, around: Around) -> None:
        """Run the code of the module ``name`` inside a context."""
        self._around[name] = around

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The module's own spec, whose loader runs the change at the end."""
        del path, target
        if fullname in self._looking or (fullname not in self._changes and fullname not in self._around):
            return None
        self._looking.add(fullname)
        try:
            # Programs also look for a package without importing it,
            # so the change stays until the code has run.
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.remove(fullname)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def run(module: ModuleType) -> None:
            with self._around.pop(fullname, nullcontext)():
                load(module)
            for change in self._changes.pop(fullname, []):
                change(module)

        spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec
