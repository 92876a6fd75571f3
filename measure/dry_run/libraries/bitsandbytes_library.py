"""bitsandbytes without its compiled kernels: its own Python code for CUDA runs and allocates, its kernels do nothing."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from measure.dry_run.libraries.importing import OnImport


def install(imports: OnImport) -> None:
    """Change bitsandbytes when the program imports it."""
    imports.add("bitsandbytes.cextension", _without_kernels)


class _NoKernels:
    """The compiled library: each function does nothing and reports no error."""

    compiled_with_cuda = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _does_nothing


def _does_nothing(*_: Any, **__: Any) -> int:
    return 0


def _without_kernels(module: ModuleType) -> None:
    module.lib = _NoKernels()  # type: ignore[attr-defined]
