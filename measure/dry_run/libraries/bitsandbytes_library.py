"""bitsandbytes without its compiled kernels: its own Python code for CUDA runs and allocates,
its kernels do nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from measure.dry_run.cuda.native import Native
from measure.dry_run.guesses import Guesses
from measure.dry_run.libraries.importing import Change, OnImport
from measure.trace.cuda.outliers import OUTLIER_SHARE


def install(imports: OnImport, native: Native, guesses: Guesses) -> None:
    """Change bitsandbytes when the program imports it."""
    imports.wrap("bitsandbytes.cextension", _other_library)
    imports.add("bitsandbytes.functional", _managed_memory(guesses))
    imports.add("bitsandbytes.functional", _outliers(native))


class _NoKernels:
    """The compiled library: each function does nothing and reports no error."""

    def __init__(self) -> None:
        self._functions: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._functions.setdefault(name, _Nothing())

    __getitem__ = __getattr__


class _Nothing:
    """A function of the library, with the attributes that ctypes gives one."""

    restype: Any = None
    argtypes: Any = None

    def __call__(self, *_: Any, **__: Any) -> int:
        return 0


@contextmanager
def _other_library() -> Iterator[None]:
    load = ctypes.cdll.LoadLibrary

    def without_kernels(name: str) -> Any:
        return _NoKernels() if "bitsandbytes" in str(name) else load(name)

    ctypes.cdll.LoadLibrary = without_kernels  # type: ignore[method-assign]
    try:
        yield
    finally:
        ctypes.cdll.LoadLibrary = load  # type: ignore[method-assign]


def _managed_memory(guesses: Guesses) -> Change:
    """Paged states are managed memory, which torch's allocator does not know:
    tensors of the host stand for them.
    """

    def change(module: ModuleType) -> None:
        def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
            del device
            made: Any = torch.empty(*shape, dtype=dtype, device="cpu")
            made.is_paged, made.page_deviceid = True, 0
            guesses.assume("paged optimizer states", "in host memory", "bitsandbytes.functional.get_paged")
            return made  # type: ignore[no-any-return]

        module.get_paged = get_paged  # type: ignore[attr-defined]

    return change


def _outliers(native: Native) -> Change:
    """int8 layers look for columns with large values: the trace's share of them is found, in each layer.
    Up to 0.44 they count such values and read the number, which is a guess (functional.py ``double_quant``).
    """

    def change(module: ModuleType) -> None:
        quantize = getattr(module, "int8_vectorwise_quant", None)
        if quantize is None:
            return

        def with_outliers(*args: Any, **kwargs: Any) -> Any:
            native.choose(OUTLIER_SHARE)
            try:
                return quantize(*args, **kwargs)
            finally:
                native.choose(0)

        module.int8_vectorwise_quant = with_outliers  # type: ignore[attr-defined]

    return change
