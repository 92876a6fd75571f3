"""Kernels that a program compiles from CUDA's source while it runs (torch 2.13 cuda/__init__.py,
``_compile_kernel``): neither compiled nor started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from measure.dry_run.cuda.native import Native
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.triton_kernels import write_guess


def install(native: Native, guesses: Guesses) -> None:
    """Such a kernel has the call of torch's own, and allocates nothing."""

    def compile_kernel(_: str, kernel_name: str, *__: Any, **___: Any) -> _Kernel:
        return _Kernel(kernel_name, native, guesses)

    setattr(torch.cuda, "_compile_kernel", compile_kernel)  # noqa: B010 - torch's types do not allow it


class _Kernel:
    def __init__(self, name: str, native: Native, guesses: Guesses) -> None:
        self._name, self._native, self._guesses = name, native, guesses

    def __call__(self, grid: Any = None, block: Any = None, args: Sequence[Any] = (), **_: Any) -> None:
        """Nobody reads which tensors it writes, so each counts as written."""
        del grid, block
        self._guesses.assume(
            "a kernel of CUDA's source", "not started; what it writes is guessed", self._name
        )
        for each in args or ():
            if isinstance(each, torch.Tensor):
                write_guess(self._native, each)

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """It is no memory of the card."""
