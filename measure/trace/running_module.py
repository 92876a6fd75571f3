"""Which module is running, and which one made an autograd node."""

# ruff: noqa: SLF001 - what torch calls private here has no public name

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from measure.trace.record import OUTSIDE


class ModuleStack:
    """Which module's forward is running, and which ran when an autograd node was made.

    Autograd numbers nodes in the order of the forward pass (``Node._sequence_nr``), so a node of the backward
    pass is traced to the module that made it without holding any tensor.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._layers: dict[str, int] = {}
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._paths: list[str] = []

    @property
    def path(self) -> str:
        """Name of the innermost module that is running, empty outside."""
        return self._stack[-1] if self._stack else ""

    def path_at(self, number: int) -> str:
        """Name of the module that made the autograd node with this sequence number."""
        index = bisect_right(self._numbers, number) - 1
        return self._paths[index] if index >= 0 else ""

    def layer_of(self, path: str) -> int:
        """Index of the decoder layer that ``path`` is in, -1 outside."""
        return self._layers.get(path, OUTSIDE)

    @contextmanager
    def watching(self, models: Iterable[torch.nn.Module], layer_list: str) -> Iterator[None]:
        """Follow the calls of all modules of ``models``, which are alike; ``layer_list``:
        name of the list of decoder layers.
        """
        for model in models:
            self.learn(model, f"{layer_list}." if layer_list else None)
        with self.following():
            yield

    def learn(self, model: torch.nn.Module, prefix: str | None) -> None:
        """Take the names of the modules of ``model``; those of layers begin with ``prefix``, and with their
        number behind it.  ``None``: it has no layers.
        """
        for name, module in model.named_modules():
            self._names[id(module)] = name
            if prefix is not None and name != "" and name.startswith(prefix):
                self._layers[name] = int(name[len(prefix) :].partition(".")[0])

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow the calls of all modules."""
        original = torch.nn.Module.__call__
        stack = self

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            stack._enter(stack._name_of(module))
            try:
                return original(module, *args, **kwargs)
            finally:
                stack._leave()

        torch.nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Attribute what happens inside to the module ``name``."""
        self._stack.append(name)
        try:
            yield
        finally:
            self._stack.pop()

    def _name_of(self, module: torch.nn.Module) -> str:
        return self._names.get(id(module), self.path)

    def _enter(self, name: str) -> None:
        self._stack.append(name)
        self._note()

    def _leave(self) -> None:
        self._stack.pop()
        self._note()

    def _note(self) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._paths.append(self.path)
