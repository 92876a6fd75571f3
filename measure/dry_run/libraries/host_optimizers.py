"""DeepSpeed's optimizers in host RAM: their kernels are built where they are first used, and would read
tensors without values.  Here they are not built and do nothing; states and copies are DeepSpeed's own code.

Source: DeepSpeed 0.19.8 ops/adam/cpu_adam.py, ops/adagrad/cpu_adagrad.py, ops/lion/cpu_lion.py, which ask
py-cpuinfo 9.0.0 for the CPU's vendor; that starts a process of its own, and knows none where it fails.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from measure.dry_run.libraries.importing import Change, OnImport

if TYPE_CHECKING:
    from measure.dry_run.guesses import Guesses

# Modules, with the builder that each calls and the word in the names of its kernels.
_BUILDERS = {
    "deepspeed.ops.adam.cpu_adam": ("CPUAdamBuilder", "adam"),
    "deepspeed.ops.adagrad.cpu_adagrad": ("CPUAdagradBuilder", "adagrad"),
    "deepspeed.ops.lion.cpu_lion": ("CPULionBuilder", "lion"),
}


def install(imports: OnImport, guesses: Guesses) -> None:
    """Change the modules when the program imports them."""
    for name, (builder, word) in _BUILDERS.items():
        imports.add(name, _without_kernels(guesses, builder, word))
    imports.add("cpuinfo", _of_unknown_vendor)


def _without_kernels(guesses: Guesses, builder: str, word: str) -> Change:
    def change(module: ModuleType) -> None:
        def load() -> SimpleNamespace:
            guesses.assume("an optimizer's kernel in host RAM", "not run", module.__name__)
            return SimpleNamespace(
                **dict.fromkeys((f"create_{word}", f"{word}_update", f"destroy_{word}"), _nothing)
            )

        setattr(module, builder, lambda: SimpleNamespace(load=load))

    return change


def _of_unknown_vendor(module: ModuleType) -> None:
    module.get_cpu_info = dict  # type: ignore[attr-defined]


def _nothing(*_: Any) -> None:
    """In place of a kernel."""
